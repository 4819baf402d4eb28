// The host's memory: 64-bit addresses, pages made when touched, and the windows that the card may use.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <unordered_map>

class Memory {
    static const uint64_t PAGE = 4096;
    std::unordered_map<uint64_t, std::unique_ptr<uint8_t[]>> pages_;
    uint64_t last_no_ = ~uint64_t(0);
    uint8_t* last_ = nullptr;
    std::map<uint64_t, uint64_t> windows_;     // first byte -> last byte, neither overlapping nor adjacent
    uint64_t hit_first_ = 1, hit_last_ = 0;

    uint8_t* page(uint64_t no, bool make) {
        if (no == last_no_) return last_;
        auto it = pages_.find(no);
        if (it == pages_.end()) {
            if (!make) return nullptr;
            it = pages_.emplace(no, std::unique_ptr<uint8_t[]>(new uint8_t[PAGE]())).first;
        }
        last_no_ = no;
        return last_ = it->second.get();
    }

public:
    void read(uint64_t addr, uint8_t* to, uint64_t n) {
        while (n) {
            uint64_t at = addr % PAGE, part = std::min(n, PAGE - at);
            const uint8_t* p = page(addr / PAGE, false);
            if (p) memcpy(to, p + at, part); else memset(to, 0, part);
            addr += part; to += part; n -= part;
        }
    }
    void write(uint64_t addr, const uint8_t* from, uint64_t n) {
        while (n) {
            uint64_t at = addr % PAGE, part = std::min(n, PAGE - at);
            memcpy(page(addr / PAGE, true) + at, from, part);
            addr += part; from += part; n -= part;
        }
    }
    void fill(uint64_t addr, uint8_t value, uint64_t n) {
        while (n) {
            uint64_t at = addr % PAGE, part = std::min(n, PAGE - at);
            memset(page(addr / PAGE, true) + at, value, part);
            addr += part; n -= part;
        }
    }
    uint8_t byte(uint64_t addr) {
        const uint8_t* p = page(addr / PAGE, false);
        return p ? p[addr % PAGE] : 0;
    }

    // Windows are inclusive ranges, so that one may end with the last byte of the address space.
    void unmap(uint64_t first, uint64_t last) {
        hit_first_ = 1; hit_last_ = 0;
        std::map<uint64_t, uint64_t> kept;
        for (auto& w : windows_) {
            if (w.second < first || w.first > last) { kept.insert(w); continue; }
            if (w.first < first) kept[w.first] = first - 1;
            if (w.second > last) kept[last + 1] = w.second;
        }
        windows_.swap(kept);
    }
    void map(uint64_t first, uint64_t last) {
        hit_first_ = 1; hit_last_ = 0;
        uint64_t lo = first, hi = last;
        for (auto& w : windows_)
            if ((lo == 0 || w.second >= lo - 1) && (hi == ~uint64_t(0) || w.first <= hi + 1)) {
                lo = std::min(lo, w.first);
                hi = std::max(hi, w.second);
            }
        unmap(lo, hi);
        windows_[lo] = hi;
    }
    bool mapped(uint64_t first, uint64_t last) {
        if (first >= hit_first_ && last <= hit_last_) return true;
        auto it = windows_.upper_bound(first);
        if (it == windows_.begin()) return false;
        --it;
        if (last > it->second) return false;
        hit_first_ = it->first; hit_last_ = it->second;
        return true;
    }
};
