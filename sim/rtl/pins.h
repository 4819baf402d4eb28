// The top's ports as plain memory, whatever the top is, and the random numbers of the agents around it.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

// One port of the top. Verilator keeps a value in 1, 2, 4 or 8 bytes, wider ones in 32-bit words, all little endian,
// so on a little-endian host bit 8n of the port is byte n of its storage.
struct Port {
    const char* name;
    unsigned bits;
    bool input;
    void* data;
};

// One register (rows 0) or memory of the design, for a model that was built to have its state changed; storage as of a port.
struct Cell {
    const char* name;
    unsigned bits, rows;
    bool table;
    size_t stride;      // bytes of storage of a row
    void* data;
};

// What the generated binding provides: the model, its ports and its evaluation.
class Top {
public:
    std::vector<Port> ports;
    std::vector<Cell> cells;
    virtual void settle() {}        // state was changed: what depends on it follows
    virtual ~Top() {}
    virtual void eval() = 0;
    virtual bool open_waves(const char* path) = 0;  // false: built without
    virtual void dump(uint64_t time) = 0;
};

Top* make_top();

class Pin {
    uint8_t* p_ = spare_;
    unsigned size_ = 1, bits_ = 0;
    uint8_t spare_[8] = {0};    // an absent port reads as 0 and swallows what is written

public:
    Pin() {}
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

    void bind(Top& top, const std::string& name) {
        for (auto& port : top.ports)
            if (name == port.name) {
                p_ = static_cast<uint8_t*>(port.data);
                bits_ = port.bits;
                size_ = bits_ <= 8 ? 1 : bits_ <= 16 ? 2 : bits_ <= 32 ? 4 : bits_ <= 64 ? 8 : 4 * ((bits_ + 31) / 32);
            }
    }
    bool present() const { return bits_ != 0; }
    unsigned bits() const { return bits_; }
    unsigned bytes() const { return (bits_ + 7) / 8; }

    uint64_t get() const {      // the low 64 bits
        switch (size_) {
        case 1: return *p_;
        case 2: { uint16_t v; memcpy(&v, p_, 2); return v; }
        case 4: { uint32_t v; memcpy(&v, p_, 4); return v; }
        default: { uint64_t v; memcpy(&v, p_, 8); return v; }
        }
    }
    void set(uint64_t v) {      // for ports of at most 64 bits
        if (bits_ < 64) v &= (uint64_t(1) << bits_) - 1;
        memcpy(p_, &v, size_ < 8 ? size_ : 8);
    }
    const uint8_t* raw() const { return p_; }
    void load(const uint8_t* from) { memcpy(p_, from, bytes()); }
};

// xorshift64*, seeded through splitmix64 from the run's seed and the agent's name: agents don't disturb each other.
class Rng {
    uint64_t s_ = 1;

public:
    void seed(uint64_t seed, const std::string& name) {
        for (char c : name) seed = (seed ^ uint8_t(c)) * 0x100000001B3ull;
        seed += 0x9E3779B97F4A7C15ull;
        seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9ull;
        seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EBull;
        s_ = (seed ^ (seed >> 31)) | 1;
    }
    uint64_t next() {
        s_ ^= s_ >> 12; s_ ^= s_ << 25; s_ ^= s_ >> 27;
        return s_ * 0x2545F4914F6CDD1Dull;
    }
    uint64_t between(uint64_t low, uint64_t high) { return low >= high ? low : low + (next() >> 16) % (high - low + 1); }
    bool chance(int64_t per_million) {  // 0 draws nothing
        return per_million > 0 && int64_t((next() >> 16) % 1000000) < per_million;
    }
};
