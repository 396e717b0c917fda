#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

namespace accelerator {
namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr size_t kAddresses = size_t{64} << 30; // of each device: freed blocks need not be neighbours to be used again
constexpr size_t kGrain = 4096;
constexpr size_t kSmallest = 512;
constexpr size_t kLarge = size_t{1} << 20;
constexpr size_t kRounded = size_t{2} << 20;
constexpr size_t kDefaultCapacity = size_t{4} << 30;
constexpr int kPoison = 0xFF; // a NaN, or -1

size_t rounded(size_t nbytes, size_t to) {
  return (nbytes + to - 1) / to * to;
}

struct Block {
  c10::DeviceIndex device;
  c10::StreamId stream; // to which it belongs: freed, it is handed out at once to what is queued there
  size_t offset;
  size_t nbytes;
  std::set<c10::StreamId> others; // that were said to use it
};

// Bytes that both mappings show: one that nobody may touch, whose addresses the program sees, and one for kernels.
struct Space {
  char* outside = nullptr;
  char* within = nullptr;

  Space() {
    const int file = memfd_create("test accelerator", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kAddresses * kDevices) == 0, "no memory for the test accelerator");
    outside = map(PROT_NONE, file);
    within = map(PROT_READ | PROT_WRITE, file);
    close(file);
  }

  static char* map(int protection, int file) {
    void* found = mmap(nullptr, kAddresses * kDevices, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(found != MAP_FAILED, "no addresses for the test accelerator");
    return static_cast<char*>(found);
  }
};

Space& space() {
  static auto* found = new Space();
  return *found;
}

void* address_of(const Block& block) {
  return space().outside + block.device * kAddresses + block.offset;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  Allocator() {
    for (auto& device : devices_) {
      device.figures.capacity = kDefaultCapacity;
      device.holes[0] = kAddresses;
    }
  }

  c10::DataPtr allocate(size_t nbytes) override {
    const auto device = current_device();
    const auto stream = current_stream(device);
    void* address = nullptr;
    if (nbytes > 0) {
      Block* block = take(device, stream.id(), nbytes);
      address = address_of(*block);
    }
    return {address, address, &Allocator::give_back, c10::Device(kDevice, device)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &Allocator::give_back;
  }

  void copy_data(void* target, const void* source, size_t nbytes) const override {
    auto& queue = current_queue();
    queue.submit([=] { std::memcpy(inside(target), inside(source), nbytes); }, "copy", {{inside(target), nbytes, true}, {inside(source), nbytes, false}});
    queue.finish();
  }

  bool initialized() override {
    return true;
  }

  void emptyCache(c10::MempoolId_t) override {
    for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
      std::lock_guard<std::mutex> lock(mutex_);
      release_cached(device);
    }
  }

  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(memory.get());
    if (found != blocks_.end() && stream.id() != found->second->stream) {
      found->second->others.insert(stream.id());
    }
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const auto now = get(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    set(stats.allocated_bytes, now.allocated, now.peak_allocated);
    set(stats.active_bytes, now.allocated, now.peak_allocated);
    set(stats.reserved_bytes, now.reserved, now.peak_reserved);
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex) override {}

  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& now = devices_.at(device).figures;
    now.peak_allocated = now.allocated;
    now.peak_reserved = now.reserved;
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto now = get(device);
    return {now.capacity - std::min(now.capacity, now.reserved), now.capacity};
  }

  Figures get(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex_);
    return devices_.at(device).figures;
  }

  void set_poison_at_free(bool is_on) {
    std::lock_guard<std::mutex> lock(mutex_);
    poisons_at_free_ = is_on;
  }

  void set_capacity(c10::DeviceIndex device, size_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    devices_.at(device).figures.capacity = nbytes;
  }

 private:
  // Freed, but said to be used on other streams: there until these are through with it.
  struct Pending {
    Block* block;
    std::vector<Event> events;
  };

  struct Device {
    Figures figures = {};
    std::map<size_t, size_t> holes; // addresses without memory: where each begins, and its bytes
    std::map<c10::StreamId, std::multimap<size_t, Block*>> cached;
    std::vector<Pending> pending;
  };

  static void set(c10::CachingDeviceAllocator::StatArray& stat, size_t now, size_t peak) {
    stat[0].current = static_cast<int64_t>(now);
    stat[0].peak = static_cast<int64_t>(peak);
  }

  static void give_back(void* address);

  Block* take(c10::DeviceIndex index, c10::StreamId stream, size_t asked) {
    const size_t nbytes = rounded(asked, asked < kLarge ? kSmallest : kRounded);
    std::lock_guard<std::mutex> lock(mutex_);
    auto& device = devices_.at(index);
    collect(device);
    Block* block = from_cache(device, stream, nbytes);
    if (block == nullptr) {
      block = from_device(index, stream, nbytes);
    }
    if (block == nullptr) {
      release_cached(index);
      block = from_device(index, stream, nbytes);
    }
    const auto& now = device.figures;
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        block != nullptr,
        "test accelerator out of memory. Tried to allocate ",
        nbytes,
        " bytes; device ",
        static_cast<int>(index),
        " has ",
        now.capacity,
        " bytes, of which ",
        now.reserved,
        " are reserved and ",
        now.allocated,
        " allocated");
    blocks_[address_of(*block)] = block;
    device.figures.allocated += block->nbytes;
    device.figures.peak_allocated = std::max(device.figures.peak_allocated, device.figures.allocated);
    return block;
  }

  // As large as asked, or not much larger.
  static Block* from_cache(Device& device, c10::StreamId stream, size_t nbytes) {
    auto& cached = device.cached[stream];
    const auto found = cached.lower_bound(nbytes);
    if (found == cached.end() || found->first > nbytes + nbytes / 4) {
      return nullptr;
    }
    Block* block = found->second;
    cached.erase(found);
    poison(*block);
    return block;
  }

  Block* from_device(c10::DeviceIndex index, c10::StreamId stream, size_t nbytes) {
    auto& device = devices_.at(index);
    if (device.figures.reserved + nbytes > device.figures.capacity) {
      return nullptr;
    }
    const size_t taken = rounded(nbytes, kGrain);
    const auto hole = std::find_if(
        device.holes.begin(), device.holes.end(), [=](const auto& each) { return each.second >= taken; });
    if (hole == device.holes.end()) {
      return nullptr;
    }
    const auto [offset, length] = *hole;
    device.holes.erase(hole);
    if (length > taken) {
      device.holes[offset + taken] = length - taken;
    }
    device.figures.reserved += nbytes;
    device.figures.peak_reserved = std::max(device.figures.peak_reserved, device.figures.reserved);
    auto* block = new Block{index, stream, offset, nbytes, {}};
    poison(*block);
    return block;
  }

  // Whoever goes on using it finds that out.
  static void poison(const Block& block) {
    void* memory = inside(address_of(block));
    const auto overwrite = [memory, nbytes = block.nbytes] { std::memset(memory, kPoison, nbytes); };
    queue_of(block.device, block.stream).submit(overwrite, "what has the memory next", {{memory, block.nbytes, true}});
  }

  void give(void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) {
      return;
    }
    Block* block = found->second;
    blocks_.erase(found);
    auto& device = devices_.at(block->device);
    device.figures.freed += block->nbytes;
    device.figures.allocated -= block->nbytes; // though others may still use it: as CUDA's allocator counts
    if (block->others.empty()) {
      cache(device, block);
      return;
    }
    Pending pending{block, {}};
    for (const auto stream : block->others) {
      pending.events.emplace_back().record(queue_of(block->device, stream));
    }
    block->others.clear();
    device.pending.push_back(std::move(pending));
  }

  void cache(Device& device, Block* block) {
    if (poisons_at_free_) {
      poison(*block);
    }
    device.cached[block->stream].emplace(block->nbytes, block);
  }

  void collect(Device& device, bool waits = false) {
    std::vector<Pending> left;
    for (auto& pending : device.pending) {
      bool is_over = true;
      for (const auto& event : pending.events) {
        if (waits) {
          event.wait();
        }
        is_over = is_over && event.is_over();
      }
      if (is_over) {
        for (const auto& event : pending.events) {
          queue_of(pending.block->device, pending.block->stream).follows(*event.clock);
        }
        cache(device, pending.block);
      } else {
        left.push_back(std::move(pending));
      }
    }
    device.pending = std::move(left);
  }

  // As cudaFree does, it waits for the device.
  void release_cached(c10::DeviceIndex index) {
    auto& device = devices_.at(index);
    collect(device, /*waits=*/true);
    synchronize(index);
    for (auto& [stream, cached] : device.cached) {
      for (const auto& [nbytes, block] : cached) {
        device.figures.reserved -= nbytes;
        const size_t length = rounded(nbytes, kGrain);
        madvise(inside(address_of(*block)), length, MADV_REMOVE);
        add_hole(device.holes, block->offset, length);
        delete block;
      }
      cached.clear();
    }
  }

  static void add_hole(std::map<size_t, size_t>& holes, size_t offset, size_t length) {
    auto next = holes.lower_bound(offset);
    if (next != holes.end() && next->first == offset + length) {
      length += next->second;
      next = holes.erase(next);
    }
    if (next != holes.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += length;
        return;
      }
    }
    holes[offset] = length;
  }

  std::mutex mutex_;
  bool poisons_at_free_ = true;
  std::array<Device, kDevices> devices_;
  std::map<void*, Block*> blocks_;
};

Allocator& allocator() {
  static auto* found = new Allocator();
  return *found;
}

void Allocator::give_back(void* address) {
  allocator().give(address);
}

// -- page-locked memory of the host -----------------------------------------------------------------------------------

struct Pinned {
  size_t nbytes;
  std::vector<Event> uses;
};

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    collect();
    const size_t length = rounded(std::max<size_t>(nbytes, 1), kGrain);
    void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(address != MAP_FAILED, "no page-locked memory");
    add(address, length);
    return {address, address, &PinnedAllocator::give_back, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &PinnedAllocator::give_back;
  }

  void copy_data(void* target, const void* source, size_t nbytes) const override {
    std::memcpy(target, source, nbytes);
  }

  bool record_event(void* address, void*, c10::Stream stream) override {
    use(address, queue_of(stream));
    return true;
  }

  void empty_cache() override {
    collect();
  }

  at::HostStats get_stats() override {
    return {};
  }

  void reset_accumulated_stats() override {}

  void reset_peak_stats() override {}

  bool add(void* address, size_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto next = blocks_.lower_bound(static_cast<char*>(address));
    const bool meets_next = next != blocks_.end() && next->first < static_cast<char*>(address) + nbytes;
    if (meets_next || find(address) != nullptr) {
      return false;
    }
    blocks_[static_cast<char*>(address)] = Pinned{nbytes, {}};
    return true;
  }

  bool remove(void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    return blocks_.erase(static_cast<char*>(address)) > 0;
  }

  bool has(const void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    return find(address) != nullptr;
  }

  void use(const void* address, Queue& queue) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (Pinned* found = find(address)) {
      auto& uses = found->uses;
      uses.erase(std::remove_if(uses.begin(), uses.end(), [](const Event& use) { return use.is_over(); }), uses.end());
      uses.emplace_back().record(queue);
    }
  }

 private:
  static void give_back(void* address);

  Pinned* find(const void* address) {
    const auto* wanted = static_cast<const char*>(address);
    auto next = blocks_.upper_bound(const_cast<char*>(wanted));
    if (next == blocks_.begin()) {
      return nullptr;
    }
    const auto found = std::prev(next);
    return wanted < found->first + found->second.nbytes ? &found->second : nullptr;
  }

  void give(void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(static_cast<char*>(address));
    freed_.emplace_back(found->first, std::move(found->second));
    blocks_.erase(found);
  }

  // Unmap what was freed, and is used by no copy any more.
  void collect() {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto is_over = [](const std::pair<char*, Pinned>& freed) {
      const auto& uses = freed.second.uses;
      if (!std::all_of(uses.begin(), uses.end(), [](const Event& use) { return use.is_over(); })) {
        return false;
      }
      munmap(freed.first, freed.second.nbytes);
      return true;
    };
    freed_.erase(std::remove_if(freed_.begin(), freed_.end(), is_over), freed_.end());
  }

  std::mutex mutex_;
  std::map<char*, Pinned> blocks_;
  std::vector<std::pair<char*, Pinned>> freed_;
};

PinnedAllocator& pinned() {
  static auto* found = new PinnedAllocator();
  return *found;
}

void PinnedAllocator::give_back(void* address) {
  pinned().give(address);
}

} // namespace

void* inside(const void* address) {
  if (!is_of_device(address)) {
    return const_cast<void*>(address);
  }
  return space().within + (static_cast<const char*>(address) - space().outside);
}

bool is_of_device(const void* address) {
  const auto* found = static_cast<const char*>(address);
  return found >= space().outside && found < space().outside + kAddresses * kDevices;
}

void set_capacity(c10::DeviceIndex device, size_t nbytes) {
  allocator().set_capacity(device, nbytes);
}

Figures figures(c10::DeviceIndex device) {
  return allocator().get(device);
}

void reset_peaks(c10::DeviceIndex device) {
  allocator().resetPeakStats(device);
}

void empty_cache() {
  allocator().emptyCache({0, 0});
}

void set_poison_at_free(bool is_on) {
  allocator().set_poison_at_free(is_on);
}

void record_stream(const c10::DataPtr& memory, const c10::Stream& stream) {
  allocator().recordStream(memory, stream);
}

c10::Allocator* device_allocator() {
  return &allocator();
}

at::HostAllocator* pinned_allocator() {
  return &pinned();
}

bool is_pinned(const void* address) {
  return pinned().has(address);
}

void use_pinned(const void* address, Queue& queue) {
  pinned().use(address, queue);
}

bool register_pinned(void* address, size_t nbytes) {
  return pinned().add(address, nbytes);
}

bool unregister_pinned(void* address) {
  return pinned().remove(address);
}

} // namespace accelerator
