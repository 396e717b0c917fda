// Memory of the test accelerator: addresses that the host cannot read, and an allocator that caches by stream.
#pragma once

#include <cstddef>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include "streams.h"

namespace accelerator {

struct Figures {
  size_t capacity;
  size_t allocated;
  size_t reserved;
  size_t peak_allocated;
  size_t peak_reserved;
  size_t freed;
};

// The same bytes at an address that kernels and copies may use. Whoever asks is one of these.
void* inside(const void* address);

bool is_of_device(const void* address);

void set_capacity(c10::DeviceIndex device, size_t nbytes);
Figures figures(c10::DeviceIndex device);
void reset_peaks(c10::DeviceIndex device);
void empty_cache();

// Whether memory is poisoned when it is freed, and not only when it is handed out again: a program that has its stream
// wait for others between the two is right, but has to be spared.
void set_poison_at_free(bool is_on);

// The memory is not handed out again before `stream` is through with it.
void record_stream(const c10::DataPtr& memory, const c10::Stream& stream);

c10::Allocator* device_allocator();

// -- page-locked memory of the host -----------------------------------------------------------------------------------

at::HostAllocator* pinned_allocator();
bool is_pinned(const void* address);

// A copy from or to page-locked memory was queued: it is not freed before that is over.
void use_pinned(const void* address, Queue& queue);

// What the program page-locks by itself, as with cudaHostRegister. False if some of it is locked already.
bool register_pinned(void* address, size_t nbytes);
bool unregister_pinned(void* address);

} // namespace accelerator
