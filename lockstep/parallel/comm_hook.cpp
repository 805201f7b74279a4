// SPDX-License-Identifier: BSD-3-Clause
// What a communication hook sees of a bucket.
#include "lockstep/parallel/comm_hook.h"

#include "lockstep/parallel/bucket.h"

namespace lockstep {

int GradBucket::index() const {
  return bucket_.index();
}
const at::Tensor& GradBucket::buffer() const {
  return bucket_.flat();
}
const std::vector<at::Tensor>& GradBucket::gradients() const {
  return bucket_.gradients();
}
const at::Tensor& GradBucket::trailer() const {
  return bucket_.trailer();
}
const std::vector<int>& GradBucket::parameters() const {
  return bucket_.parameters();
}

}  // namespace lockstep
