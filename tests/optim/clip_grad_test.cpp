// SPDX-License-Identifier: BSD-3-Clause
// Clipping beside torch::nn::utils, with whole gradients and with divided ones.
#include "lockstep/optim/clip_grad.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distinct_parameters.h"

namespace lockstep {
namespace {

using testing::message_of;
using testing::Mlp;
using testing::run_rank_threads;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Backward of different batches on the ranks, so that the means differ from any rank's gradient.
template <class Model>
void run_backward(Model& model, int rank) {
  model(testing::values({4, 6}) + rank).square().mean().backward();
}

class ClipGrad : public ::testing::TestWithParam<bool> {
 protected:
  static DistributedDataParallelOptions options() {
    return {.bucket_cap_mb = 0, .first_bucket_mb = 0, .whole_gradients = GetParam()};
  }
};

TEST_P(ClipGrad, ScalesAsTorchDoes) {
  for (const double norm_type : {2.0, 1.0, 3.0, kInfinity}) {
    for (const double max_norm : {0.01, 1e6}) {
      run_rank_threads(3, [&](const std::shared_ptr<ProcessGroup>& group) {
        Mlp net;
        Mlp reference;
        testing::copy_state(*reference, *net);
        DistributedDataParallel model(net, group, options());
        DistributedDataParallel reference_model(reference, group);
        run_backward(model, group->rank());
        run_backward(reference_model, group->rank());
        const double norm = clip_grad_norm_(model, max_norm, norm_type);
        const double expected =
            torch::nn::utils::clip_grad_norm_(reference->parameters(), max_norm, norm_type);
        EXPECT_NEAR(norm, expected, 1e-5 * expected);
        // Steps of SGD show the gradients that each rank uses.
        optim::SGD optimizer(model, 1.0);
        torch::optim::SGD reference_optimizer(reference->parameters(), 1.0);
        optimizer.step();
        reference_optimizer.step();
        for (const auto& item : reference->named_parameters()) {
          EXPECT_TRUE(at::allclose(net->named_parameters()[item.key()], item.value(), 1e-5, 1e-7))
              << item.key();
        }
      });
    }
  }
}

TEST_P(ClipGrad, RanksGetTheSameBits) {
  run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, options());
    run_backward(model, group->rank());
    const double norm = clip_grad_norm_(model, 0.1);
    for (const double other : all_gather_object(norm, *group)) EXPECT_EQ(other, norm);
  });
}

TEST_P(ClipGrad, ClampsValues) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, options());
    run_backward(model, group->rank());
    clip_grad_value_(model, 1e-3);
    EXPECT_LE(clip_grad_norm_(model, 1e6, kInfinity), 1e-3 * (1 + 1e-6));
    EXPECT_GT(clip_grad_norm_(model, 1e6, kInfinity), 0.9e-3);
  });
}

TEST_P(ClipGrad, NormsThatAreNotFiniteAreErrorsIfAskedFor) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, options());
    at::Tensor x = testing::values({4, 6});
    if (group->rank() == 1) x[0][0] = std::nan("");
    model(x).square().mean().backward();
    EXPECT_THAT(message_of<Error>([&] { clip_grad_norm_(model, 1, 2, true); }),
                ::testing::HasSubstr("the norm of order 2 of the gradients is NaN"));
    EXPECT_TRUE(std::isnan(clip_grad_norm_(model, 1)));
  });
}

TEST_P(ClipGrad, AComplexElementCountsByItsMagnitude) {
  for (const int ranks : {1, 2}) {
    run_rank_threads(ranks, [](const std::shared_ptr<ProcessGroup>& group) {
      struct Net : torch::nn::Module {
        Net() { weight = register_parameter("weight", at::ones({2}, at::kComplexDouble)); }
        at::Tensor forward(const at::Tensor& x) const { return at::real(weight * x).sum(); }
        at::Tensor weight;
      };
      const auto net = std::make_shared<Net>();
      DistributedDataParallel model(net, group, options());
      const at::Tensor x = at::complex(at::tensor({3.0, 1.0}), at::tensor({4.0, 0.0}));
      model(x).backward();
      EXPECT_NEAR(clip_grad_norm_(model, 1e6, 1), 6, 1e-12);
      EXPECT_NEAR(clip_grad_norm_(model, 1e6, kInfinity), 5, 1e-12);
      EXPECT_NEAR(clip_grad_norm_(model, 2), std::sqrt(26), 1e-12);
      EXPECT_NEAR(clip_grad_norm_(model, 1e6), 2, 1e-5);
    });
  }
}

TEST_P(ClipGrad, TiedWeightsCountOnce) {
  for (const int ranks : {1, 2, 3}) {
    run_rank_threads(ranks, [](const std::shared_ptr<ProcessGroup>& group) {
      testing::Tied net;
      testing::set_weights(*net, 1);
      testing::Tied reference;
      testing::copy_state(*reference, *net);
      DistributedDataParallel model(net, group, options());
      const at::Tensor x = testing::values({4, 6});
      model(x).square().sum().backward();
      reference->forward(x).square().sum().backward();
      const std::vector<at::Tensor> parameters = distinct_parameters(*reference);
      const double expected = torch::nn::utils::clip_grad_norm_(parameters, 1);
      ASSERT_GT(expected, 1);
      EXPECT_NEAR(clip_grad_norm_(model, 1), expected, 1e-5 * expected);
      EXPECT_NEAR(clip_grad_norm_(model, 1), 1, 1e-4);
      optim::SGD optimizer(model, 1.0);
      optimizer.step();
      torch::optim::SGD(parameters, 1.0).step();
      testing::expect_close(net->weight, reference->weight, "the tied weight");
    });
  }
}

TEST_P(ClipGrad, OneRankClipsItsOwn) {
  run_rank_threads(1, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, options());
    run_backward(model, 0);
    EXPECT_GT(clip_grad_norm_(model, 0.01), 0.01);
    EXPECT_NEAR(clip_grad_norm_(model, 0.01), 0.01, 1e-4);
  });
}

INSTANTIATE_TEST_SUITE_P(With, ClipGrad, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "WholeGradients" : "DividedGradients");
});

TEST(ClipGradErrors, NameTheValue) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    EXPECT_THAT(message_of<UsageError>([&] { clip_grad_norm_(model, -1); }),
                ::testing::HasSubstr("max_norm is -1"));
    EXPECT_THAT(message_of<UsageError>([&] { clip_grad_norm_(model, 1, 0); }),
                ::testing::HasSubstr("norm_type 0"));
    EXPECT_THAT(message_of<UsageError>([&] { clip_grad_value_(model, -2); }),
                ::testing::HasSubstr("clip_value is -2"));
    net->parameters()[0].mutable_grad() = at::ones_like(net->parameters()[0]);
    EXPECT_THAT(message_of<UsageError>([&] { clip_grad_norm_(model, 1); }),
                ::testing::HasSubstr("no backward of the wrapped model"));
  });
}

}  // namespace
}  // namespace lockstep
