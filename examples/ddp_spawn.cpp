// SPDX-License-Identifier: BSD-3-Clause
// Linear regression twice: in this process alone, then by ranks that this process starts itself,
// which rendezvous over TCP and hand their results back to main.
//
//   ddp_spawn [RANKS [PORT]]     default: 2 ranks, rendezvous on port 29400
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include <lockstep/lockstep.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

struct Result {
  double seconds;
  float weight;
  float bias;
};

Result train(std::shared_ptr<lockstep::ProcessGroup> group) {
  torch::manual_seed(0);
  lockstep::LinearDataset points;
  lockstep::DistributedSampler sampler(points, group);
  lockstep::MemoryLoader loader(points.inputs(), points.targets(), sampler, {.batch_size = 32});

  torch::nn::Linear line(1, 1);
  torch::optim::SGD optimizer(line->parameters(), 0.01);
  lockstep::DistributedDataParallel model(line, group);

  group->barrier().wait();
  const auto start = std::chrono::steady_clock::now();
  for (int epoch = 0; epoch < 10; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& batch : loader) {
      optimizer.zero_grad();
      torch::mse_loss(model(batch.data), batch.target).backward();
      optimizer.step();
    }
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return {taken.count(), line->weight.item<float>(), line->bias.item<float>()};
}

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? std::stoi(argv[1]) : 2;
  const std::string port = argc > 2 ? argv[2] : "29400";

  // One thread, as each rank has.
  torch::set_num_threads(1);
  // If libtorch has started threads by the time of spawn, ranks run main again: they skip this
  // training.
  const Result alone =
      lockstep::is_rank() ? Result{} : train(lockstep::init_process_group({.world_size = 1}));

  const auto results = lockstep::spawn(ranks, [&](int rank) {
    return train(lockstep::init_process_group(
        {.init_method = "tcp://127.0.0.1:" + port, .rank = rank, .world_size = ranks}));
  });

  double slowest = 0;
  for (const Result& result : results) slowest = std::max(slowest, result.seconds);
  std::printf("alone:   y = %.2f x + %.2f in %.3f s\n", alone.weight, alone.bias, alone.seconds);
  std::printf("%d ranks: y = %.2f x + %.2f in %.3f s\n", ranks, results[0].weight, results[0].bias,
              slowest);
  std::printf("speedup %.2f, ideal %d\n", alone.seconds / slowest, ranks);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "ddp_spawn: %s\n", error.what());
  return 1;
}
