// The simulated device: the top, the agents on its ports, the clock, and the C interface that Python loads.
// Agents are found by port name: X + "awvalid" as an output with 64 address bits is a memory port, and so on.
#include <memory>
#include "axi_memory.h"
#include "registers.h"
#include "streams.h"

namespace {

bool ends_with(const std::string& s, const std::string& tail) {
    return s.size() >= tail.size() && !s.compare(s.size() - tail.size(), tail.size(), tail);
}

enum Until { CYCLE = 0, SENT, TRACES, HOST_FRAMES, IDLE, WRITES, IRQ, BYTE, TRACES_AND_OVERFLOWS, MAC_FRAMES };

class Device {
public:
    World world;
    std::unique_ptr<Top> top;
    Pin clk, rst;
    std::vector<std::unique_ptr<Agent>> agents;
    std::vector<std::unique_ptr<AxiShared>> shared;
    std::map<std::string, StreamSource*> sources;
    std::map<std::string, StreamSink*> sinks;
    std::map<std::string, LiteMaster*> masters;
    std::map<std::string, AxiShared*> ports;
    std::map<std::string, AxiWrites*> writes;
    std::map<std::string, AxiReads*> reads;
    std::map<std::string, TraceTap*> traces;
    std::map<std::string, IrqTap*> irqs;
    bool waves = false;

    template <class T> T* add(T* agent) { agents.emplace_back(agent); return agent; }

    explicit Device(uint64_t seed) : top(make_top()) {
        world.seed = seed;
        clk.bind(*top, "clk");
        rst.bind(*top, "rst");
        for (auto& port : top->ports) {
            std::string n = port.name;
            if (ends_with(n, "tvalid")) {
                std::string p = n.substr(0, n.size() - 6);
                if (port.input) sources[p] = add(new StreamSource(world, *top, p));
                else sinks[p] = add(new StreamSink(world, *top, p));
            } else if (ends_with(n, "awvalid")) {
                std::string p = n.substr(0, n.size() - 7);
                if (port.input) masters[p] = add(new LiteMaster(world, *top, p));
                else {
                    shared.emplace_back(new AxiShared(world, p));
                    ports[p] = shared.back().get();
                    writes[p] = add(new AxiWrites(*ports[p], *top));
                }
            } else if (n == "irq" || ends_with(n, "__irq")) irqs[n] = add(new IrqTap(world, *top, n));
        }
        for (auto& port : top->ports) {
            std::string n = port.name;
            if (ends_with(n, "arvalid") && !port.input) {
                std::string p = n.substr(0, n.size() - 7);
                if (!ports.count(p)) {
                    shared.emplace_back(new AxiShared(world, p));
                    ports[p] = shared.back().get();
                }
                reads[p] = add(new AxiReads(*ports[p], *top));
            } else if (ends_with(n, "trace__valid")) {
                std::string p = n.substr(0, n.size() - 5);
                traces[p] = add(new TraceTap(world, *top, p));
            }
        }
        for (auto& t : traces) {    // a trace counts the frames of the source beside it
            std::string p = t.first.substr(0, t.first.size() - 7) + "mac_rx__";
            if (sources.count(p)) t.second->frames_in = &sources[p]->sent;
        }
    }

    void step() {
        for (auto& a : agents) a->drive();
        clk.set(0);
        top->eval();
        if (waves) top->dump(2 * world.cycle);
        for (auto& a : agents) a->sample();
        clk.set(1);
        top->eval();
        if (waves) top->dump(2 * world.cycle + 1);
        world.cycle++;
    }
    void reset(uint64_t cycles, bool cut) {
        rst.set(1);
        world.in_reset = true;
        for (auto& a : agents) a->reset();
        if (cut) for (auto& s : sources) s.second->cut();
        for (uint64_t i = 0; i < cycles; i++) step();
        rst.set(0);
        world.in_reset = false;
    }
    bool idle(uint64_t quiet) {
        if (world.cycle < world.last_activity + quiet) return false;
        for (auto& a : agents) if (!a->idle()) return false;
        return true;
    }
    uint64_t received(const char* name) {
        uint64_t n = 0;
        for (auto& s : sinks) if (ends_with(s.first, name)) n += s.second->received;
        return n;
    }
    bool met(int kind, uint64_t a, uint64_t b, uint64_t c) {
        uint64_t n = 0;
        switch (kind) {
        case CYCLE: return world.cycle >= a;
        case SENT: for (auto& s : sources) if (ends_with(s.first, "mac_rx__")) n += s.second->sent; return n >= a;
        case TRACES: for (auto& t : traces) n += t.second->records.size(); return n >= a;
        case TRACES_AND_OVERFLOWS:
            for (auto& t : traces) n += t.second->records.size() + t.second->overflows.size();
            return n >= a;
        case HOST_FRAMES: return received("host_rx__") >= a;
        case MAC_FRAMES: return received("mac_tx__") >= a;
        case IDLE: return idle(a);
        case WRITES: for (auto& w : writes) n += w.second->done; return n >= a;
        case IRQ: for (auto& i : irqs) if (i.second->value & a) return true; return false;
        case BYTE: return (world.memory.byte(a) & b) == c;
        }
        return true;
    }
};

template <class M> auto find(M& map, const char* name) -> typename M::mapped_type {
    auto it = map.find(name);
    return it == map.end() ? nullptr : it->second;
}

template <class T> uint64_t copy(const std::vector<T>& from, uint64_t skip, T* to, uint64_t room) {
    if (skip >= from.size()) return 0;
    uint64_t n = std::min<uint64_t>(room, from.size() - skip);
    if (to && n) memcpy(to, &from[skip], n * sizeof(T));
    return n;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API Device* dev_new(uint64_t seed) { return new Device(seed); }
API void dev_free(Device* d) { delete d; }
API int dev_waves(Device* d, const char* path) { return d->waves = d->top->open_waves(path); }

API int dev_ports(Device* d, uint64_t i, const char** name, uint32_t* bits, int* input) {
    if (i >= d->top->ports.size()) return 0;
    *name = d->top->ports[i].name; *bits = d->top->ports[i].bits; *input = d->top->ports[i].input;
    return 1;
}
API int dev_set_knob(Device* d, const char* name, int64_t value) {
    auto it = d->world.knobs.find(name);
    if (it == d->world.knobs.end()) return 0;
    it->second = value;
    return 1;
}
API int dev_knob(Device* d, uint64_t i, const char** name, int64_t* value) {
    if (i >= d->world.knobs.size()) return 0;
    auto it = d->world.knobs.begin();
    std::advance(it, i);
    *name = it->first.c_str(); *value = it->second;
    return 1;
}
API void dev_seed(Device* d, uint64_t seed) {
    d->world.seed = seed;
    for (auto& a : d->agents) a->reseed();
}
API uint64_t dev_cycle(Device* d) { return d->world.cycle; }
API void dev_run(Device* d, uint64_t cycles) { while (cycles--) d->step(); }
API int dev_run_until(Device* d, int kind, uint64_t a, uint64_t b, uint64_t c, uint64_t limit) {
    while (!d->met(kind, a, b, c)) {
        if (!limit--) return 0;
        d->step();
    }
    return 1;
}
API void dev_reset(Device* d, uint64_t cycles, int cut) { d->reset(cycles, cut); }

API void dev_mem_read(Device* d, uint64_t addr, uint8_t* to, uint64_t n) { d->world.memory.read(addr, to, n); }
API void dev_mem_write(Device* d, uint64_t addr, const uint8_t* from, uint64_t n) { d->world.memory.write(addr, from, n); }
API void dev_mem_fill(Device* d, uint64_t addr, int value, uint64_t n) { d->world.memory.fill(addr, uint8_t(value), n); }
API void dev_map(Device* d, uint64_t first, uint64_t last) { d->world.memory.map(first, last); }
API void dev_unmap(Device* d, uint64_t first, uint64_t last) { d->world.memory.unmap(first, last); }

API uint64_t dev_fault_count(Device* d) { return d->world.fault_count; }
API int dev_fault(Device* d, uint64_t i, Fault* out) {
    if (i >= d->world.faults.size()) return 0;
    *out = d->world.faults[i];
    return 1;
}
API uint64_t dev_violation_count(Device* d) { return d->world.violation_count; }
API int dev_violation(Device* d, uint64_t i, uint64_t* cycle, uint64_t* addr, const char** text) {
    if (i >= d->world.violations.size()) return 0;
    Violation& v = d->world.violations[i];
    *cycle = v.cycle; *addr = v.addr; *text = v.text.c_str();
    return 1;
}
API void dev_clear_faults(Device* d) {
    d->world.faults.clear(); d->world.violations.clear();
    d->world.fault_count = d->world.violation_count = 0;
}

API int dev_cell(Device* d, uint64_t i, const char** name, uint32_t* bits, uint32_t* rows, int* table) {
    if (i >= d->top->cells.size()) return 0;
    Cell& c = d->top->cells[i];
    *name = c.name; *bits = c.bits; *rows = c.rows; *table = c.table;
    return 1;
}
namespace {
uint8_t* cell_byte(Device* d, uint64_t i, uint64_t row, uint32_t bit) {
    if (i >= d->top->cells.size()) return nullptr;
    Cell& c = d->top->cells[i];
    if (bit >= c.bits || row >= (c.rows ? c.rows : 1)) return nullptr;
    return static_cast<uint8_t*>(c.data) + row * c.stride + bit / 8;
}
}
API int dev_bit(Device* d, uint64_t i, uint64_t row, uint32_t bit) {
    uint8_t* at = cell_byte(d, i, row, bit);
    return at ? *at >> bit % 8 & 1 : -1;
}
// Between two clock edges. 1: the bit is the other one now; 0: it isn't state, something else decides it; -1: no such bit
API int dev_flip(Device* d, uint64_t i, uint64_t row, uint32_t bit) {
    uint8_t* at = cell_byte(d, i, row, bit);
    if (!at) return -1;
    uint8_t wanted = *at ^ uint8_t(1 << bit % 8);
    *at = wanted;
    d->top->settle();
    return *at == wanted;
}
API void dev_settle(Device* d) { d->top->settle(); }

API AxiShared* dev_axi(Device* d, const char* name) { return find(d->ports, name); }
API void axi_rule(AxiShared* s, uint64_t first, uint64_t last, int read, int write, int action, uint64_t amount, int64_t count) {
    s->rules.push_back({first, last, read != 0, write != 0, action, amount, count});
}
API int axi_unasked(Device* d, const char* name, unsigned id, unsigned beats) {
    AxiReads* r = find(d->reads, name);
    if (r) r->unasked(id, beats);
    return r != nullptr;
}
API void axi_clear_rules(AxiShared* s) { s->rules.clear(); }
API uint64_t axi_log(AxiShared* s, uint64_t skip, TransferLog* to, uint64_t room) { return copy(s->transfers, skip, to, room); }
API uint64_t axi_log_size(AxiShared* s) { return s->transfers.size(); }
API void axi_totals(Device* d, const char* name, uint64_t* out) {
    AxiWrites* w = find(d->writes, name);
    AxiReads* r = find(d->reads, name);
    out[0] = w ? w->done : 0; out[1] = w ? w->bytes : 0; out[2] = w ? w->unanswered : 0;
    out[3] = r ? r->done : 0; out[4] = r ? r->bytes : 0; out[5] = r ? r->unanswered : 0;
}

API StreamSource* dev_source(Device* d, const char* name) { return find(d->sources, name); }
API void source_send(StreamSource* s, const uint8_t* bytes, uint64_t n, uint64_t at, int user) { s->send(bytes, n, at, user); }
API void source_send_many(StreamSource* s, const uint8_t* bytes, const uint32_t* lengths, const uint64_t* at, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        s->send(bytes, lengths[i], at ? at[i] : 0, false);
        bytes += lengths[i];
    }
}
API void source_totals(StreamSource* s, uint64_t* out) {
    out[0] = s->queued; out[1] = s->sent; out[2] = s->stalled; out[3] = s->beats;
}
API uint64_t source_stamps(StreamSource* s, uint64_t skip, void* to, uint64_t room) {
    return copy(s->stamps, skip, static_cast<std::remove_reference<decltype(s->stamps[0])>::type*>(to), room);
}

API StreamSink* dev_sink(Device* d, const char* name) { return find(d->sinks, name); }
struct SinkRecord { uint64_t first, last; uint32_t length, user; };
API void sink_waiting(StreamSink* s, uint64_t* out) { out[0] = s->frames.size(); out[1] = s->bytes; out[2] = s->received; }
// Takes the first n frames out: their bytes one after the other, and a record of each.
API void sink_take(StreamSink* s, uint64_t n, uint8_t* to, SinkRecord* records) {
    while (n-- && !s->frames.empty()) {
        auto& f = s->frames.front();
        if (!f.bytes.empty()) memcpy(to, f.bytes.data(), f.bytes.size());
        *records++ = {f.first, f.last, uint32_t(f.bytes.size()), f.user};
        to += f.bytes.size();
        s->bytes -= f.bytes.size();
        s->frames.pop_front();
    }
}

API LiteMaster* dev_master(Device* d, const char* name) { return find(d->masters, name); }
API void master_begin(LiteMaster* m, int write, uint32_t addr, uint32_t value, uint32_t strobe) {
    m->start(write, addr, value, strobe);
}
// Runs at most `limit` cycles. 0 to 3: the response; -1: none yet, and the access goes on
API int master_wait(Device* d, LiteMaster* m, uint32_t* value, uint64_t limit) {
    while (m->busy) {
        if (!limit--) return -1;
        d->step();
    }
    *value = m->data;
    return m->resp;
}
API void master_give_up(LiteMaster* m) { m->reset(); }

API TraceTap* dev_trace(Device* d, const char* name) { return find(d->traces, name); }
API uint64_t trace_count(TraceTap* t) { return t->records.size(); }
API uint64_t trace_copy(TraceTap* t, uint64_t skip, TraceRecord* to, uint64_t room) { return copy(t->records, skip, to, room); }
API uint64_t trace_overflow_count(TraceTap* t) { return t->overflows.size(); }
API uint64_t trace_overflows(TraceTap* t, uint64_t skip, TraceTap::Overflow* to, uint64_t room) {
    return copy(t->overflows, skip, to, room);
}

API IrqTap* dev_irq(Device* d, const char* name) { return find(d->irqs, name); }
API uint64_t irq_value(IrqTap* i) { return i->value; }
API uint64_t irq_edge_count(IrqTap* i) { return i->edges.size(); }
API uint64_t irq_edges(IrqTap* i, uint64_t skip, IrqTap::Edge* to, uint64_t room) { return copy(i->edges, skip, to, room); }
