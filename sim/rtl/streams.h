// AXI-Stream agents: a source that plays frames into the top as a MAC does, and a sink that collects them.
#pragma once
#include <deque>
#include "agent.h"

class StreamSource : public Agent {
    struct Frame { std::vector<uint8_t> bytes; uint64_t at; bool user; };
    struct Stamp { uint64_t first, last; };

    World& w_;
    Pin data_, keep_, last_, user_, valid_, ready_;
    Rng rng_;
    std::string name_;
    int64_t *pause_, *gap_min_, *gap_max_, *garbage_;
    std::deque<Frame> queue_;
    size_t pos_ = 0;
    uint64_t gap_ = 0;
    bool showing_ = false, junk_ = false;
    std::vector<uint8_t> beat_;

    void show_beat() {
        Frame& f = queue_.front();
        size_t n = std::min(f.bytes.size() - pos_, beat_.size());
        memcpy(beat_.data(), &f.bytes[pos_], n);
        // Lanes beyond tkeep carry rubbish: nothing may depend on them.
        for (size_t i = n; i < beat_.size(); i++) beat_[i] = *garbage_ ? uint8_t(rng_.next() >> 32) : 0;
        data_.load(beat_.data());
        for (size_t i = 0; i < beat_.size(); i += 8) {
            unsigned lanes = std::min<size_t>(beat_.size() - i, 8), used = n > i ? std::min<size_t>(n - i, lanes) : 0;
            beat_[i / 8] = uint8_t((1u << used) - 1);
        }
        keep_.load(beat_.data());
        bool last = pos_ + n == f.bytes.size();
        last_.set(last);
        user_.set(last && f.user);
        valid_.set(1);
        showing_ = true;
        junk_ = false;
    }
    void show_nothing() {
        valid_.set(0);
        showing_ = false;
        if (*garbage_ && !junk_) {
            for (auto& b : beat_) b = uint8_t(rng_.next() >> 32);
            data_.load(beat_.data());
            keep_.load(beat_.data());
            last_.set(rng_.next() >> 40);
            user_.set(rng_.next() >> 40);
            junk_ = true;
        }
    }

public:
    std::vector<Stamp> stamps;          // cycle of the first and of the last beat accepted, in order of the frames
    uint64_t queued = 0, sent = 0, stalled = 0, beats = 0;

    StreamSource(World& world, Top& top, const std::string& prefix) : w_(world), name_(prefix) {
        data_.bind(top, prefix + "tdata"); keep_.bind(top, prefix + "tkeep"); last_.bind(top, prefix + "tlast");
        user_.bind(top, prefix + "tuser"); valid_.bind(top, prefix + "tvalid"); ready_.bind(top, prefix + "tready");
        beat_.resize(data_.bytes());
        pause_ = w_.knob(prefix + "pause", 0);
        gap_min_ = w_.knob(prefix + "gap_min", 0);
        gap_max_ = w_.knob(prefix + "gap_max", 0);
        garbage_ = w_.knob(prefix + "garbage", 1);
        reseed();
    }
    void reseed() override { rng_.seed(w_.seed, name_); }
    void send(const uint8_t* bytes, size_t n, uint64_t at, bool user) {
        queue_.push_back({std::vector<uint8_t>(bytes, bytes + n), at, user});
        stamps.push_back({~uint64_t(0), ~uint64_t(0)});
        queued++;
    }
    void drive() override {
        if (showing_) return;           // valid stays until accepted
        if (queue_.empty() || w_.in_reset) return show_nothing();
        if (pos_ == 0 && (gap_ || w_.cycle < queue_.front().at)) {
            if (gap_) gap_--;
            return show_nothing();
        }
        if (rng_.chance(*pause_)) return show_nothing();
        show_beat();
    }
    void sample() override {
        if (!showing_ || w_.in_reset) return;
        if (!ready_.get()) { stalled++; return; }
        w_.active();
        beats++;
        showing_ = false;
        Frame& f = queue_.front();
        if (pos_ == 0) stamps[sent].first = w_.cycle;
        pos_ += beat_.size();
        if (pos_ >= f.bytes.size()) {
            stamps[sent].last = w_.cycle;
            sent++;
            pos_ = 0;
            queue_.pop_front();
            gap_ = rng_.between(*gap_min_, *gap_max_);
        }
    }
    void reset() override { showing_ = false; }
    // The frame under way ends here: the next beat is the first one of the next frame.
    void cut() {
        if (pos_ == 0 || queue_.empty()) return;
        queue_.pop_front();
        sent++;
        pos_ = 0;
    }
    bool idle() const override { return queue_.empty(); }
};

// Ready as its knobs want it: withheld at random (pause), and so often that a cable of `rate` bits each 2^20 cycles would
// carry the frames, each with `overhead` bytes beside it and at least `shortest` bytes long (0: as fast as they come).
class StreamSink : public Agent {
    World& w_;
    Pin data_, keep_, last_, user_, valid_, ready_;
    Rng rng_;
    std::string name_;
    int64_t *pause_, *rate_, *overhead_, *shortest_;
    int64_t ahead_ = 0;                 // what was taken and isn't on the cable yet, in bits / 2^20
    std::vector<uint8_t> partial_;
    uint64_t first_ = 0;
    StallCheck check_;

public:
    struct Frame { std::vector<uint8_t> bytes; uint64_t first, last; bool user; };
    std::deque<Frame> frames;
    uint64_t received = 0, bytes = 0;   // frames in all; bytes of those in `frames`

    StreamSink(World& world, Top& top, const std::string& prefix)
        : w_(world), name_(prefix), check_(world, prefix, {&data_, &keep_, &last_, &user_}) {
        data_.bind(top, prefix + "tdata"); keep_.bind(top, prefix + "tkeep"); last_.bind(top, prefix + "tlast");
        user_.bind(top, prefix + "tuser"); valid_.bind(top, prefix + "tvalid"); ready_.bind(top, prefix + "tready");
        pause_ = w_.knob(prefix + "pause", 0);
        rate_ = w_.knob(prefix + "rate", 0);
        overhead_ = w_.knob(prefix + "overhead", 24);
        shortest_ = w_.knob(prefix + "shortest", 60);
        reseed();
    }
    void reseed() override { rng_.seed(w_.seed, name_); }
    void drive() override {
        bool take = !w_.in_reset && !rng_.chance(*pause_);
        if (*rate_) {
            ahead_ = std::max<int64_t>(0, ahead_ - *rate_);
            take = take && ahead_ <= int64_t(data_.bytes()) * 8 << 20;      // one beat ahead, or the rate isn't reached
        }
        ready_.set(take);
    }
    void sample() override {
        if (w_.in_reset) return;
        bool valid = valid_.get(), ready = ready_.get();
        check_.sample(valid, ready);
        if (!valid || !ready) return;
        w_.active();
        if (partial_.empty()) first_ = w_.cycle;
        bool last = last_.get();
        size_t n = 0, lanes = data_.bytes();
        const uint8_t* keep = keep_.raw();
        while (n < lanes && keep[n / 8] >> (n % 8) & 1) n++;
        for (size_t i = n; i < lanes; i++)
            if (keep[i / 8] >> (i % 8) & 1) { w_.violation(0, name_ + ": tkeep has a hole"); break; }
        if (n == 0) w_.violation(0, name_ + ": a beat without bytes");
        if (!last && n != lanes) w_.violation(0, name_ + ": tkeep is not full before the last beat");
        partial_.insert(partial_.end(), data_.raw(), data_.raw() + n);
        if (*rate_) {
            int64_t size = n;
            if (last) size += *overhead_ + std::max<int64_t>(0, *shortest_ - int64_t(partial_.size()));
            ahead_ += size * 8 << 20;
        }
        if (last) {
            bytes += partial_.size();
            frames.push_back({std::move(partial_), first_, w_.cycle, bool(user_.get() & 1)});
            partial_.clear();
            received++;
        }
    }
    void reset() override { partial_.clear(); check_.reset(); ahead_ = 0; }
    bool idle() const override { return partial_.empty(); }
};
