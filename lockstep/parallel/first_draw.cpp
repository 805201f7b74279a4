// SPDX-License-Identifier: BSD-3-Clause
// Hashes the state of a generator.
#include "lockstep/parallel/first_draw.h"

#include <mutex>

#include <ATen/Context.h>

#include "lockstep/parallel/tensor_hash.h"

namespace lockstep {

std::int64_t FirstDraw::state_hash() const {
  if (!device_.is_cpu() && !device_.is_cuda()) return 0;
  at::Generator generator = at::globalContext().defaultGenerator(device_);
  const std::lock_guard lock(generator.mutex());
  return static_cast<std::int64_t>(tensor_hash(generator.get_state()));
}

}  // namespace lockstep
