"""Engine `model`: the frames through the plain Python program of `sim.models`.

Of transport xp the receive half alone gives the verdicts; of transport rc, whose answers count, a whole card made of models
does, as it does when the frames that the card sends are asked for."""

from sim.model_device import ModelDevice
from sim.models.memory import Region
from sim.models.nic import ArrivalMap, NicModel, ceil_ticks
from sim.models.wire import Rules

from .engine_rtl import replay_on
from .result import Result
from .schedule import arrivals

__all__ = ["replay_model", "build_model"]


def build_model(setup):
    cfg = setup.config
    rules = Rules(mtu_max=cfg.mtu_max, max_frame_bytes=cfg.max_frame_bytes, ipv6=cfg.ipv6, vlan=cfg.vlan, uc=cfg.uc)
    model = NicModel(rules, regions=[Region(r.rkey, r.va, r.length, r.access, r.pd) for r in setup.regions], most_open=cfg.most_open)
    for region in setup.regions:
        model.memory.write(region.va, region.content())
    for qp in setup.qps:
        model.add_qp(qp.qpn, qp.type, qp.pd, qp.mtu, qp.generation, str(qp.peer),
                     arrivals=ArrivalMap(*qp.arrival_map) if qp.arrival_map else None)
        for receive in qp.receives:
            model.post(qp.qpn, receive.va, receive.length, receive.lkey, ceil_ticks(receive.timeout_ns))
    return model


def replay_model(setup, frames, progress, posts={}, sent=False):
    """`posts`: as in engine_rtl. `sent`: the frames that the card sends are wanted."""
    if setup.config.rc:
        return replay_card(setup, frames, progress, posts)
    model = build_model(setup)
    verdicts, end = [], 0
    for i, (frame, (_, end)) in enumerate(zip(frames, arrivals(frames, setup))):
        for time, qpn, r in posts.get(i, ()):
            model.advance(time)
            model.post(qpn, r.va, r.length, r.lkey, ceil_ticks(r.timeout_ns), time)
        verdicts.append(model.frame(frame.data, end))
        progress(len(verdicts), len(frames))
    model.advance(max(setup.end_ns, end))
    found = Result(verdicts, model.completions, {r.rkey: model.region_bytes(r.rkey) for r in setup.regions}, model.counters,
                  model.refused, {qp.number: bytes(qp.arrivals.data) for qp in model.qps.values() if qp.arrivals})
    if sent:
        found.sent = replay_card(setup, frames, lambda done, total: None, posts).sent
    return found


def replay_card(setup, frames, progress, posts):
    cfg = setup.config.with_(trace=True)
    return replay_on(ModelDevice(cfg), setup, cfg, frames, progress, posts)
