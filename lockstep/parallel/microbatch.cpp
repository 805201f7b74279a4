// SPDX-License-Identifier: BSD-3-Clause
// The microbatch of each thread.
#include "lockstep/parallel/microbatch.h"

#include <utility>

#include "lockstep/data/sample_random.h"

namespace lockstep {
namespace {

thread_local constinit Microbatch* current_microbatch = nullptr;

}  // namespace

std::uint64_t Microbatch::key(std::size_t draw) const {
  return SampleRandom(seed, step, static_cast<std::size_t>(index), draw)();
}

MicrobatchScope::MicrobatchScope(const Microbatch& microbatch)
    : microbatch_(microbatch), before_(std::exchange(current_microbatch, &microbatch_)) {}

MicrobatchScope::~MicrobatchScope() {
  current_microbatch = before_;
}

Microbatch* MicrobatchScope::current() {
  return current_microbatch;
}

}  // namespace lockstep
