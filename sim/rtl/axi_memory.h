// The memory behind one AXI4 master of the top: latencies, pauses, injected errors, and a strict protocol check.
// Answers to one ID are in order of the requests; those to different IDs may overtake one another.
#pragma once
#include <algorithm>
#include <deque>
#include <list>
#include "agent.h"

// Transfers that touch [first, last] are answered in a bad way: the next `count` of them, or all (count < 0).
struct ErrorRule {
    enum Action { SLVERR = 1, DECERR = 2, NEVER = 3, LATE = 4, SHORT = 5 };
    uint64_t first, last;
    bool on_read, on_write;
    int action;
    uint64_t amount;        // LATE: cycles more; SHORT: beats given, the last of them with rlast
    int64_t count;
};

// One finished transfer: cycles of its address and of its answer, the bytes from the first to the last one.
struct TransferLog { uint64_t cycle, end_cycle, addr, length; uint32_t id, resp, write, pad; };

struct AxiShared {
    World& w;
    std::string name;
    std::vector<ErrorRule> rules;
    std::vector<TransferLog> transfers;
    int64_t* logging;

    AxiShared(World& world, const std::string& prefix) : w(world), name(prefix) { logging = w.knob(prefix + "log", 0); }

    ErrorRule* match(bool write, uint64_t first, uint64_t last) {
        for (auto& r : rules)
            if ((write ? r.on_write : r.on_read) && r.count != 0 && first <= r.last && last >= r.first) {
                if (r.count > 0) r.count--;
                return &r;
            }
        return nullptr;
    }
    void log(uint64_t cycle, uint64_t end, uint64_t addr, uint64_t n, unsigned id, unsigned resp, bool write) {
        if (*logging) transfers.push_back({cycle, end, addr, n, id, resp, write, 0});
    }
    void check_burst(const char* channel, uint64_t addr, unsigned beats, unsigned size, unsigned burst, unsigned bus) {
        if (burst != 1) w.violation(addr, name + channel + ": burst type is not INCR");
        if ((1u << size) > bus) w.violation(addr, name + channel + ": size exceeds the bus");
        uint64_t start = addr >> size << size, end = start + (uint64_t(beats) << size) - 1;
        if (start / 4096 != end / 4096) w.violation(addr, name + channel + ": burst crosses 4 KiB");
    }
};

class AxiWrites : public Agent {
    struct Run { uint64_t addr; size_t at, n; };    // bytes to write: their address, and where they are in `data`
    struct Write {
        uint64_t start, cycle, due, visible_at;
        unsigned id, beats, got, size, resp;
        bool bad, visible;
        std::vector<uint8_t> data;
        std::vector<Run> runs;
        bool complete() const { return got == beats; }
        uint64_t first() const { return runs.empty() ? start : runs.front().addr; }
        uint64_t last() const { return runs.empty() ? start : runs.back().addr + runs.back().n - 1; }
        uint64_t length() const { return runs.empty() ? 0 : last() - first() + 1; }
    };
    struct Beat { std::vector<uint8_t> data, strobe; bool last; };

    AxiShared& s_;
    World& w_;
    Pin id_, addr_, len_, size_, burst_, avalid_, aready_, data_, strb_, wlast_, wvalid_, wready_;
    Pin bid_, bresp_, bvalid_, bready_;
    StallCheck a_check_, w_check_;
    Rng rng_;
    unsigned bytes_;
    int64_t *lat_min_, *lat_max_, *a_pause_, *w_pause_, *b_pause_, *max_, *early_max_, *visibility_;
    std::list<Write> writes_;           // in order of their addresses, until answered
    std::deque<Beat> early_;            // data that came before its address
    std::vector<uint64_t> ready_;       // by ID: its next answer is not before this
    std::list<Write>::iterator shown_;
    bool showing_ = false;
    uint64_t lacking_ = 0;              // writes whose data isn't complete

    void accept(Beat& beat) {
        auto it = writes_.begin();
        while (it->complete()) ++it;
        Write& t = *it;
        uint64_t step = uint64_t(1) << t.size, at = t.got ? (t.start / step + t.got) * step : t.start;
        unsigned lo = at % bytes_, hi = (at / step * step + step - 1) % bytes_;
        uint64_t word = at - lo;
        t.got++;
        if (beat.last != t.complete()) w_.violation(t.start, s_.name + "w: wlast is not on the last beat of the burst");
        for (unsigned i = 0; i < bytes_;) {
            if (!(beat.strobe[i / 8] >> (i % 8) & 1)) { i++; continue; }
            unsigned j = i;
            while (j < bytes_ && beat.strobe[j / 8] >> (j % 8) & 1) j++;
            if (i < lo || j - 1 > hi) w_.violation(t.start, s_.name + "w: strobe outside the burst");
            if (!t.runs.empty() && t.runs.back().addr + t.runs.back().n == word + i) t.runs.back().n += j - i;
            else t.runs.push_back({word + i, t.data.size(), j - i});
            t.data.insert(t.data.end(), &beat.data[i], &beat.data[0] + j);
            i = j;
        }
        if (t.complete()) finish(it);
    }
    void finish(std::list<Write>::iterator it) {
        Write& t = *it;
        uint64_t extra = 0;
        lacking_--;
        bytes += t.data.size();
        for (auto& r : t.runs)
            if (!w_.memory.mapped(r.addr, r.addr + r.n - 1)) {
                w_.fault(r.addr, r.n, true);
                t.resp = 3;
                t.bad = true;
            }
        if (ErrorRule* r = s_.match(true, t.first(), t.last())) {
            if (r->action == ErrorRule::NEVER) {
                s_.log(t.cycle, ~uint64_t(0), t.first(), t.length(), t.id, 0, true);
                unanswered++;
                writes_.erase(it);
                return;
            }
            if (r->action == ErrorRule::LATE) extra = r->amount;
            if (r->action == ErrorRule::SLVERR || r->action == ErrorRule::DECERR) {
                t.resp = r->action == ErrorRule::SLVERR ? 2 : 3;
                t.bad = true;
            }
        }
        t.due = std::max(ready_[t.id], w_.cycle + 1 + rng_.between(*lat_min_, *lat_max_) + extra);
        ready_[t.id] = t.due;
        t.visible_at = *visibility_ == 1 ? w_.cycle : *visibility_ == 2 ? rng_.between(w_.cycle, t.due) : t.due;
    }
    void apply(std::list<Write>::iterator it) {
        Write& t = *it;
        if (t.visible) return;
        t.visible = true;
        if (t.bad || t.runs.empty()) return;
        // Never before an earlier write to the same bytes.
        for (auto e = writes_.begin(); e != it; ++e)
            if (e->complete() && !e->visible && e->first() <= t.last() && t.first() <= e->last()) apply(e);
        for (auto& r : t.runs) w_.memory.write(r.addr, &t.data[r.at], r.n);
    }

public:
    uint64_t bytes = 0, done = 0, unanswered = 0;

    AxiWrites(AxiShared& shared, Top& top)
        : s_(shared), w_(shared.w), a_check_(w_, s_.name + "aw", {&id_, &addr_, &len_, &size_, &burst_}),
          w_check_(w_, s_.name + "w", {&data_, &strb_, &wlast_}) {
        const std::string& p = s_.name;
        id_.bind(top, p + "awid"); addr_.bind(top, p + "awaddr"); len_.bind(top, p + "awlen"); size_.bind(top, p + "awsize");
        burst_.bind(top, p + "awburst"); avalid_.bind(top, p + "awvalid"); aready_.bind(top, p + "awready");
        data_.bind(top, p + "wdata"); strb_.bind(top, p + "wstrb"); wlast_.bind(top, p + "wlast");
        wvalid_.bind(top, p + "wvalid"); wready_.bind(top, p + "wready");
        bid_.bind(top, p + "bid"); bresp_.bind(top, p + "bresp"); bvalid_.bind(top, p + "bvalid"); bready_.bind(top, p + "bready");
        bytes_ = data_.bytes();
        ready_.resize(size_t(1) << id_.bits());
        lat_min_ = w_.knob(p + "write_latency_min", 20); lat_max_ = w_.knob(p + "write_latency_max", 20);
        a_pause_ = w_.knob(p + "aw_pause", 0); w_pause_ = w_.knob(p + "w_pause", 0); b_pause_ = w_.knob(p + "b_pause", 0);
        max_ = w_.knob(p + "writes_max", 256); early_max_ = w_.knob(p + "early_data", 16);
        visibility_ = w_.knob(p + "visibility", 0);
        reseed();
    }
    void reseed() override { rng_.seed(w_.seed, s_.name + "writes"); }
    void drive() override {
        aready_.set(!w_.in_reset && int64_t(writes_.size()) < *max_ && !rng_.chance(*a_pause_));
        wready_.set(!w_.in_reset && (lacking_ || int64_t(early_.size()) < *early_max_) && !rng_.chance(*w_pause_));
        for (auto it = writes_.begin(); it != writes_.end(); ++it)
            if (it->complete() && it->visible_at <= w_.cycle) apply(it);
        if (!showing_ && !w_.in_reset && !rng_.chance(*b_pause_)) {
            uint64_t seen = 0;          // IDs with an earlier answer outstanding (IDs modulo 64: harmless, only stricter)
            for (auto it = writes_.begin(); it != writes_.end() && !showing_; ++it) {
                uint64_t bit = uint64_t(1) << (it->id % 64);
                if (seen & bit) continue;
                seen |= bit;
                if (it->complete() && it->due <= w_.cycle) {
                    shown_ = it;
                    showing_ = true;
                    apply(it);
                    bid_.set(it->id);
                    bresp_.set(it->resp);
                }
            }
        }
        if (!showing_) { bid_.set(rng_.next() >> 32); bresp_.set(rng_.next() >> 32); }
        bvalid_.set(showing_);
    }
    void sample() override {
        if (w_.in_reset) return;
        bool av = avalid_.get(), ar = aready_.get(), wv = wvalid_.get(), wr = wready_.get();
        a_check_.sample(av, ar);
        w_check_.sample(wv, wr);
        if (av && ar) {
            w_.active();
            Write t{};
            t.start = addr_.get(); t.cycle = w_.cycle; t.id = id_.get(); t.beats = len_.get() + 1; t.size = size_.get();
            s_.check_burst("aw", t.start, t.beats, t.size, burst_.get(), bytes_);
            writes_.push_back(std::move(t));
            lacking_++;
        }
        if (wv && wr) {
            w_.active();
            early_.push_back({{data_.raw(), data_.raw() + bytes_}, {strb_.raw(), strb_.raw() + strb_.bytes()}, bool(wlast_.get())});
        }
        while (lacking_ && !early_.empty()) {
            accept(early_.front());
            early_.pop_front();
        }
        if (showing_ && bready_.get()) {
            w_.active();
            s_.log(shown_->cycle, w_.cycle, shown_->first(), shown_->length(), shown_->id, shown_->resp, true);
            writes_.erase(shown_);
            showing_ = false;
            done++;
        }
    }
    // What was complete is done, as a memory would; what was not is lost.
    void reset() override {
        for (auto it = writes_.begin(); it != writes_.end(); ++it)
            if (it->complete()) apply(it);
        writes_.clear();
        early_.clear();
        showing_ = false;
        lacking_ = 0;
        a_check_.reset();
        w_check_.reset();
    }
    bool idle() const override { return writes_.empty() && early_.empty(); }
};

class AxiReads : public Agent {
    struct Read {
        uint64_t start, cycle, due;
        unsigned id, beats, given, size, resp;
        bool unasked;           // nobody wants it: it is not logged, and its data are rubbish
    };

    AxiShared& s_;
    World& w_;
    Pin id_, addr_, len_, size_, burst_, avalid_, aready_, rid_, data_, resp_, last_, rvalid_, rready_;
    StallCheck check_;
    Rng rng_;
    unsigned bytes_, current_ = 0, open_ = 0;
    int64_t *lat_min_, *lat_max_, *a_pause_, *r_pause_, *max_, *interleave_, *shuffle_;
    std::vector<std::deque<Read>> queues_;      // by ID
    std::vector<unsigned> ids_, due_;           // the IDs that have reads, and those of them that can go on
    bool showing_ = false, in_burst_ = false;
    std::vector<uint8_t> word_;

    void show(Read& t) {
        uint64_t at = ((t.start >> t.size) + t.given) << t.size;
        if (t.resp || t.unasked) for (auto& b : word_) b = uint8_t(rng_.next() >> 32);
        else w_.memory.read(at / bytes_ * bytes_, word_.data(), bytes_);
        data_.load(word_.data());
        rid_.set(t.id);
        resp_.set(t.resp);
        last_.set(t.given + 1 == t.beats);
    }
    // The ID whose next beat comes: a burst is not interrupted, then it is the turn of whose data have been there for longest, or
    // of any one. (Turns by ID would let a reader whose IDs count up have them all.)
    bool pick() {
        if (in_burst_ && !*interleave_) return true;
        due_.clear();
        for (unsigned id : ids_) if (queues_[id].front().due <= w_.cycle) due_.push_back(id);
        if (due_.empty()) return false;
        unsigned best = due_[0];
        if (*interleave_ || *shuffle_) best = due_[rng_.between(0, due_.size() - 1)];
        else for (unsigned id : due_)
            if (queues_[id].front().due < queues_[best].front().due) best = id;
        current_ = best;
        return true;
    }
    void enqueue(const Read& t) {
        if (queues_[t.id].empty()) ids_.push_back(t.id);
        queues_[t.id].push_back(t);
        open_++;
    }
    void show_rubbish() {
        for (size_t i = 0; i < word_.size(); i += 8) {
            uint64_t r = rng_.next();
            memcpy(&word_[i], &r, std::min<size_t>(8, word_.size() - i));
        }
        data_.load(word_.data());
        rid_.set(rng_.next() >> 32); resp_.set(rng_.next() >> 32); last_.set(rng_.next() >> 32);
    }

public:
    uint64_t bytes = 0, done = 0, unanswered = 0;

    AxiReads(AxiShared& shared, Top& top)
        : s_(shared), w_(shared.w), check_(w_, s_.name + "ar", {&id_, &addr_, &len_, &size_, &burst_}) {
        const std::string& p = s_.name;
        id_.bind(top, p + "arid"); addr_.bind(top, p + "araddr"); len_.bind(top, p + "arlen"); size_.bind(top, p + "arsize");
        burst_.bind(top, p + "arburst"); avalid_.bind(top, p + "arvalid"); aready_.bind(top, p + "arready");
        rid_.bind(top, p + "rid"); data_.bind(top, p + "rdata"); resp_.bind(top, p + "rresp"); last_.bind(top, p + "rlast");
        rvalid_.bind(top, p + "rvalid"); rready_.bind(top, p + "rready");
        bytes_ = data_.bytes();
        word_.resize(bytes_);
        queues_.resize(size_t(1) << id_.bits());
        lat_min_ = w_.knob(p + "read_latency_min", 40); lat_max_ = w_.knob(p + "read_latency_max", 40);
        a_pause_ = w_.knob(p + "ar_pause", 0); r_pause_ = w_.knob(p + "r_pause", 0);
        max_ = w_.knob(p + "reads_max", 256); interleave_ = w_.knob(p + "interleave", 0);
        shuffle_ = w_.knob(p + "shuffle", 0);
        reseed();
    }
    void reseed() override { rng_.seed(w_.seed, s_.name + "reads"); }
    void drive() override {
        aready_.set(!w_.in_reset && int64_t(open_) < *max_ && !rng_.chance(*a_pause_));
        if (showing_) return;
        if (open_ && !w_.in_reset && !rng_.chance(*r_pause_) && pick()) {
            show(queues_[current_].front());
            showing_ = in_burst_ = true;
        }
        if (!showing_) show_rubbish();
        rvalid_.set(showing_);
    }
    void sample() override {
        if (w_.in_reset) return;
        bool av = avalid_.get(), ar = aready_.get();
        check_.sample(av, ar);
        if (showing_ && rready_.get()) {
            w_.active();
            auto& q = queues_[current_];
            Read& t = q.front();
            showing_ = false;
            if (++t.given == t.beats) {
                if (!t.unasked) {
                    s_.log(t.cycle, w_.cycle, t.start, uint64_t(t.beats) << t.size, t.id, t.resp, false);
                    done++;
                }
                q.pop_front();
                if (q.empty()) ids_.erase(std::find(ids_.begin(), ids_.end(), current_));
                open_--;
                in_burst_ = false;
            }
        }
        if (av && ar) {
            w_.active();
            Read t{};
            t.start = addr_.get(); t.cycle = w_.cycle; t.id = id_.get(); t.beats = len_.get() + 1; t.size = size_.get();
            s_.check_burst("ar", t.start, t.beats, t.size, burst_.get(), bytes_);
            uint64_t end = (((t.start >> t.size) + t.beats) << t.size) - 1;
            bytes += end - t.start + 1;
            t.due = w_.cycle + 1 + rng_.between(*lat_min_, *lat_max_) + rng_.between(0, *shuffle_);
            if (!w_.memory.mapped(t.start, end)) {
                w_.fault(t.start, end - t.start + 1, false);
                t.resp = 3;
            }
            if (ErrorRule* r = s_.match(false, t.start, end)) switch (r->action) {
                case ErrorRule::SLVERR: t.resp = 2; break;
                case ErrorRule::DECERR: t.resp = 3; break;
                case ErrorRule::LATE: t.due += r->amount; break;
                case ErrorRule::SHORT: if (r->amount && r->amount < t.beats) t.beats = r->amount; break;
                case ErrorRule::NEVER:
                    s_.log(t.cycle, ~uint64_t(0), t.start, end - t.start + 1, t.id, 0, false);
                    unanswered++;
                    return;
            }
            enqueue(t);
        }
    }
    // An answer to a read that the top has not made: `beats` of rubbish, RLAST with the last one.
    void unasked(unsigned id, unsigned beats) {
        Read t{};
        t.due = w_.cycle; t.id = id % queues_.size(); t.beats = beats; t.unasked = true;
        enqueue(t);
    }
    void reset() override {
        for (auto& q : queues_) q.clear();
        ids_.clear();
        open_ = 0;
        showing_ = in_burst_ = false;
        check_.reset();
    }
    bool idle() const override { return open_ == 0; }
};
