// What every agent around the top shares: the clock, the memory, the log of what was wrong, the settable numbers.
#pragma once
#include "memory.h"
#include "pins.h"

struct Violation { uint64_t cycle, addr; std::string text; };
struct Fault { uint64_t cycle, addr, length; int write; };

struct World {
    uint64_t cycle = 0;             // rising edges so far
    uint64_t last_activity = 0;     // cycle of the last handshake anywhere but on AXI-Lite
    uint64_t seed = 1;
    bool in_reset = false;
    Memory memory;
    std::vector<Violation> violations;
    std::vector<Fault> faults;
    uint64_t violation_count = 0, fault_count = 0;
    std::map<std::string, int64_t> knobs;      // values set by name; std::map keeps the addresses of its values

    static const size_t KEPT = 1000;    // the first ones are kept, all are counted

    int64_t* knob(const std::string& name, int64_t value) { return &knobs.emplace(name, value).first->second; }
    void active() { last_activity = cycle; }
    void violation(uint64_t addr, const std::string& text) {
        if (in_reset) return;
        violation_count++;
        if (violations.size() < KEPT) violations.push_back({cycle, addr, text});
    }
    void fault(uint64_t addr, uint64_t length, bool write) {
        fault_count++;
        if (faults.size() < KEPT) faults.push_back({cycle, addr, length, write});
    }
};

// Once a cycle: drive() sets the top's inputs, the top settles, sample() looks at what the coming edge will see.
// What is driven depends on earlier cycles only, so no combinational loop runs through an agent.
class Agent {
public:
    virtual ~Agent() {}
    virtual void drive() = 0;
    virtual void sample() = 0;
    virtual void reset() = 0;           // the top is being reset: forget what is under way
    virtual void reseed() = 0;
    virtual bool idle() const { return true; }
};

// Watches one valid/ready channel: once valid, it stays so, with the same payload, until it is accepted.
class StallCheck {
    World& world_;
    std::string name_;
    std::vector<Pin*> pins_;
    std::vector<uint8_t> held_;
    bool stalled_ = false;

public:
    StallCheck(World& world, const std::string& name, std::vector<Pin*> pins) : world_(world), name_(name), pins_(pins) {}
    void reset() { stalled_ = false; }
    void sample(bool valid, bool ready) {
        if (stalled_) {
            if (!valid) world_.violation(0, name_ + ": valid withdrawn before it was accepted");
            else {
                size_t at = 0;
                bool same = true;
                for (auto* p : pins_) { same = same && !memcmp(&held_[at], p->raw(), p->bytes()); at += p->bytes(); }
                if (!same) world_.violation(0, name_ + ": payload changed before it was accepted");
            }
        }
        stalled_ = valid && !ready;
        if (stalled_) {
            held_.clear();
            for (auto* p : pins_) held_.insert(held_.end(), p->raw(), p->raw() + p->bytes());
        }
    }
};
