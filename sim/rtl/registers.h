// The host side of the AXI4-Lite port: one access at a time, address and data skewed at random.
// And what else the top reports: one record a frame (trace), and its interrupt lines.
#pragma once
#include "agent.h"

class LiteMaster : public Agent {
    World& w_;
    std::string name_;
    Pin awaddr_, awprot_, awvalid_, awready_, wdata_, wstrb_, wvalid_, wready_, bresp_, bvalid_, bready_;
    Pin araddr_, arprot_, arvalid_, arready_, rdata_, rresp_, rvalid_, rready_;
    Rng rng_;
    int64_t* skew_;             // most cycles by which address, data and acceptance are held back, each at random
    uint64_t a_at_ = 0, d_at_ = 0, r_at_ = 0;
    bool a_done_ = true, d_done_ = true, writing_ = false;

public:
    bool busy = false;
    uint32_t data = 0;
    int resp = 0;

    LiteMaster(World& world, Top& top, const std::string& p) : w_(world), name_(p) {
        awaddr_.bind(top, p + "awaddr"); awprot_.bind(top, p + "awprot"); awvalid_.bind(top, p + "awvalid");
        awready_.bind(top, p + "awready"); wdata_.bind(top, p + "wdata"); wstrb_.bind(top, p + "wstrb");
        wvalid_.bind(top, p + "wvalid"); wready_.bind(top, p + "wready"); bresp_.bind(top, p + "bresp");
        bvalid_.bind(top, p + "bvalid"); bready_.bind(top, p + "bready"); araddr_.bind(top, p + "araddr");
        arprot_.bind(top, p + "arprot"); arvalid_.bind(top, p + "arvalid"); arready_.bind(top, p + "arready");
        rdata_.bind(top, p + "rdata"); rresp_.bind(top, p + "rresp"); rvalid_.bind(top, p + "rvalid");
        rready_.bind(top, p + "rready");
        skew_ = w_.knob(p + "skew", 0);
        reseed();
    }
    void reseed() override { rng_.seed(w_.seed, name_); }
    void start(bool write, uint32_t addr, uint32_t value, unsigned strobe) {
        busy = true;
        writing_ = write;
        a_done_ = false;
        d_done_ = !write;
        a_at_ = w_.cycle + rng_.between(0, *skew_);
        d_at_ = w_.cycle + rng_.between(0, *skew_);
        r_at_ = w_.cycle + rng_.between(0, 2 * *skew_);
        if (write) { awaddr_.set(addr); wdata_.set(value); wstrb_.set(strobe); }
        else araddr_.set(addr);
    }
    void drive() override {
        awvalid_.set(busy && writing_ && !a_done_ && w_.cycle >= a_at_);
        wvalid_.set(busy && !d_done_ && w_.cycle >= d_at_);
        arvalid_.set(busy && !writing_ && !a_done_ && w_.cycle >= a_at_);
        bready_.set(busy && writing_ && w_.cycle >= r_at_);
        rready_.set(busy && !writing_ && w_.cycle >= r_at_);
    }
    void sample() override {
        if (w_.in_reset) return;
        bool answered = false;
        if (bvalid_.get()) {
            if (!busy || !writing_ || !a_done_ || !d_done_) w_.violation(0, name_ + "b: answer without a request");
            else if (bready_.get()) { resp = bresp_.get(); answered = true; }
        }
        if (rvalid_.get()) {
            if (!busy || writing_ || !a_done_) w_.violation(0, name_ + "r: answer without a request");
            else if (rready_.get()) { resp = rresp_.get(); data = rdata_.get(); answered = true; }
        }
        if ((awvalid_.get() && awready_.get()) || (arvalid_.get() && arready_.get())) a_done_ = true;
        if (wvalid_.get() && wready_.get()) d_done_ = true;
        if (answered) busy = false;
    }
    void reset() override { busy = false; a_done_ = d_done_ = true; }
};

struct TraceRecord { uint64_t cycle; uint32_t verdict, reason, qpn, length, kind, frames_in; };

class TraceTap : public Agent {
    World& w_;
    Pin valid_, verdict_, reason_, qpn_, len_, kind_, overflow_;

public:
    std::vector<TraceRecord> records;
    struct Overflow { uint64_t cycle, frames_in; };
    std::vector<Overflow> overflows;
    const uint64_t* frames_in = nullptr;        // frames wholly accepted at the MAC so far

    TraceTap(World& world, Top& top, const std::string& p) : w_(world) {
        valid_.bind(top, p + "valid"); verdict_.bind(top, p + "verdict"); reason_.bind(top, p + "reason");
        qpn_.bind(top, p + "qpn"); len_.bind(top, p + "len"); kind_.bind(top, p + "kind");
        overflow_.bind(top, p + "overflow");
    }
    void reseed() override {}
    void drive() override {}
    void sample() override {
        if (w_.in_reset) return;
        uint64_t in = frames_in ? *frames_in : 0;
        if (valid_.get()) {
            w_.active();
            records.push_back({w_.cycle, uint32_t(verdict_.get()), uint32_t(reason_.get()), uint32_t(qpn_.get()),
                               uint32_t(len_.get()), uint32_t(kind_.get()), uint32_t(in)});
        }
        if (overflow_.get()) {
            w_.active();
            overflows.push_back({w_.cycle, in});
        }
    }
    void reset() override {}
};

class IrqTap : public Agent {
    World& w_;
    Pin irq_;

public:
    struct Edge { uint64_t cycle, value; };
    std::vector<Edge> edges;
    uint64_t value = 0;

    IrqTap(World& world, Top& top, const std::string& p) : w_(world) { irq_.bind(top, p); }
    void reseed() override {}
    void drive() override {}
    void sample() override {
        uint64_t now = irq_.get();
        if (now == value) return;
        value = now;
        edges.push_back({w_.cycle, value});
    }
    void reset() override {}
};
