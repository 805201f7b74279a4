// SPDX-License-Identifier: BSD-3-Clause
// The gradients of a bucket as PowerSGD sees them: matrices with their factors, and all the rest.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "lockstep/hooks/comm_hooks.h"
#include "lockstep/parallel/comm_hook.h"

namespace lockstep {

// One iteration is begin(), reduction of first(), make_q(), reduction of q(), and end(). A
// reduction replaces each element by the mean over the ranks. A gradient that no rank contributed
// to keeps its error memory and its Q. Lives as long as its bucket's buffer is the same.
class LowRankBucket {
 public:
  LowRankBucket(const GradBucket& bucket, const PowerSGDState& options);

  bool is_of(const GradBucket& bucket) const { return buffer_.is_same(bucket.buffer()); }
  // Whether any gradient is large enough to be compressed.
  bool compresses() const { return !matrices_.empty(); }

  // Adds the error memory to the gradients, and computes P = M Q. Draws a new Q, and columns that
  // have become zero, from `random`.
  void begin(const at::Generator& random);
  // What is not compressed, and all P.
  std::vector<at::Tensor> first() const { return {rest_, p_}; }
  // Puts back what is not compressed, orthogonalizes P, and computes Q = M^T P.
  void make_q();
  const at::Tensor& q() const { return q_; }
  // Replaces the gradients by P Q^T.
  void end();

 private:
  struct Matrix {
    at::Tensor gradient;    // n x m, in the buffer
    at::Tensor used;        // its element of the trailer, in the buffer
    std::int64_t rank;      // r
    at::Tensor error = {};  // n x m; undefined without error feedback
    at::Tensor p = {};      // n x r, in p_
    at::Tensor q = {};      // m x r, in q_
    bool left_out = false;  // of this iteration, since no rank used the parameter
  };

  at::TensorOptions type_of_factors() const;
  // Adds it to the matrices if it is large enough.
  void add(const at::Tensor& gradient, const at::Tensor& used);
  void make_factors();
  void find_rest();

  PowerSGDState options_;
  at::Tensor buffer_;
  std::vector<Matrix> matrices_;
  at::Tensor p_;
  at::Tensor q_;
  std::vector<at::Tensor> rest_parts_;  // in the buffer
  at::Tensor rest_;
  bool q_is_new_ = true;
};

// Makes the columns of a 2-D matrix orthonormal, in place; a column that depends on earlier ones
// becomes zero. `epsilon` is added to each column's norm before the division. Computed in double on
// the CPU by plain loops, so that equal matrices have equal results on every rank, whatever its
// processor or number of threads. Waits for the device.
void orthogonalize(const at::Tensor& matrix, double epsilon);

}  // namespace lockstep
