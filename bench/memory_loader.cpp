// SPDX-License-Identifier: BSD-3-Clause
// Measures the cost of drawing a batch of Fashion-MNIST's size from memory, beside the training
// step of the mlp that uses it. The loader is to cost at most 3 % of the step. Run it with
// OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1.
#include "lockstep/data/memory_loader.h"

#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "lockstep/data/distributed_sampler.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSamples = 60'000;

const at::Tensor& images() {
  static const at::Tensor tensor = torch::rand({kSamples, 784});
  return tensor;
}

MemoryLoader make_loader(std::size_t batch_size) {
  DistributedSampler sampler(kSamples, 1, 0);
  sampler.set_epoch(0);  // no other order is needed: it costs the same
  return {images(),
          torch::randint(0, 10, {kSamples}, torch::kLong),
          sampler,
          {.batch_size = batch_size}};
}

// Draws batches over the epochs; making an epoch's order counts, as it does in training.
void draw_batches(benchmark::State& state) {
  auto loader = make_loader(static_cast<std::size_t>(state.range(0)));
  auto it = loader.begin();
  for (auto _ : state) {
    benchmark::DoNotOptimize(it->data.data_ptr());
    if (++it == loader.end()) it = loader.begin();
  }
}
BENCHMARK(draw_batches)->Arg(64)->Arg(128)->Arg(256)->Unit(benchmark::kMicrosecond);

// Draws the same rows by index_select, for comparison.
void index_select(benchmark::State& state) {
  const auto order = torch::randperm(kSamples, torch::kLong);
  std::int64_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        images().index_select(0, order.narrow(0, at, state.range(0))).data_ptr());
    at = (at + state.range(0)) % (kSamples - state.range(0));
  }
}
BENCHMARK(index_select)->Arg(64)->Unit(benchmark::kMicrosecond);

// Times steps of 784-256-10 with Adam: with the loader, and on one repeated batch.
void train_mlp(benchmark::State& state, bool with_loader) {
  auto loader = make_loader(static_cast<std::size_t>(state.range(0)));
  torch::nn::Sequential net(torch::nn::Linear(784, 256), torch::nn::ReLU(),
                            torch::nn::Linear(256, 10));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-3));
  auto it = loader.begin();
  for (auto _ : state) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(net->forward(it->data), it->target).backward();
    optimizer.step();
    if (with_loader && ++it == loader.end()) it = loader.begin();
  }
}
BENCHMARK_CAPTURE(train_mlp, same_batch, false)->Arg(64)->Arg(256)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(train_mlp, with_loader, true)->Arg(64)->Arg(256)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace lockstep
