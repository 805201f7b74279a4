// SPDX-License-Identifier: BSD-3-Clause
// Trains a classifier of Fashion-MNIST with all that such a training usually has: augmentation,
// bf16, label smoothing, a one-cycle schedule, averaged weights (EMA), top-5 accuracy, an early
// stop, the best weights, and curves for TensorBoard. python/image_classifier.py is the same.
//
//   lockstep run -n 2 image_classifier [IMAGES [EPOCHS]]
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

namespace nn = torch::nn;

nn::Conv2d convolution(int in, int out) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
}

nn::Sequential make_net() {
  return nn::Sequential{
      convolution(1, 16),  nn::BatchNorm2d(16),        nn::ReLU(), nn::MaxPool2d(2),
      convolution(16, 32), nn::BatchNorm2d(32),        nn::ReLU(), nn::MaxPool2d(2),
      nn::Flatten(),       nn::Linear(32 * 7 * 7, 10),
  };
}

// The images whose label has the greatest output, and one of the five greatest.
at::Tensor count_right(const at::Tensor& output, const at::Tensor& labels) {
  const auto right = std::get<1>(output.topk(5)).eq(labels.unsqueeze(1));
  return torch::stack({right.select(1, 0).sum(), right.sum()});
}

int main(int argc, char** argv) {
  const std::size_t count = argc > 1 ? std::stoul(argv[1]) : 60'000;
  const int epochs = argc > 2 ? std::stoi(argv[2]) : 10;
  torch::manual_seed(0);
  auto group = lockstep::init_process_group();
  const auto device = group->device();

  const char* folder = "/usr/share/datasets/fashion-mnist";
  const lockstep::MnistDataset images(folder);
  const lockstep::MnistDataset tests(folder, lockstep::MnistSplit::test);
  lockstep::DistributedSampler sampler(count, group);
  lockstep::DistributedSampler test_sampler(count / 6, group, {.shuffle = false});
  const auto normalized = lockstep::normalize({0.286}, {0.353});
  lockstep::DataLoader loader(
      images, sampler,
      {.batch_size = static_cast<std::size_t>(128 / group->size()),
       .device = device,
       .transforms = {lockstep::random_crop({.height = 28, .width = 28, .padding = 2}),
                      lockstep::random_horizontal_flip(), normalized}});
  lockstep::DataLoader test_loader(
      tests, test_sampler, {.batch_size = 500, .device = device, .transforms = {normalized}});

  auto net = make_net();
  net->to(device);
  lockstep::DistributedDataParallel model(net, group);
  // Rounds as Python's, which bf16 makes visible in the losses; lockstep::optim::SGD is faster.
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(5e-4));
  const auto steps = epochs * static_cast<std::int64_t>(loader.batches_per_epoch());
  lockstep::optim::LRScheduler scheduler(
      optimizer, lockstep::optim::OneCycleLR{.max_lr = {0.02}, .total_steps = steps});
  lockstep::ExponentialMovingAverage ema(net, {.decay = 0.98});
  std::optional<lockstep::TensorBoardWriter> writer;
  if (group->rank() == 0) writer.emplace("image_classifier_events");

  double best = -1;
  int best_epoch = 0;
  std::vector<lockstep::NamedTensor> best_weights;
  std::int64_t step = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    model->train();
    for (auto& batch : loader) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const lockstep::Autocast autocast(device, torch::kBFloat16);
        loss = torch::cross_entropy_loss(model(batch.data), batch.target, {}, at::Reduction::Mean,
                                         /*ignore_index=*/-100, /*label_smoothing=*/0.1);
      }
      loss.backward();
      optimizer.step();
      scheduler.step();
      ema.update();
      ++step;
      if (!writer) continue;  // which rank 0 has
      writer->add_scalar("loss", loss.item<double>(), step);
      writer->add_scalar("rate", scheduler.get_last_lr()[0], step);
      std::printf("step %lld: loss %.6f\n", static_cast<long long>(step), loss.item<double>());
    }
    // All ranks evaluate the averaged weights, and get the same numbers.
    const auto tested =
        lockstep::evaluate(ema.module(), test_loader, test_sampler, group, count_right);
    const double top1 = tested.mean(0), top5 = tested.mean(1);
    if (writer) {
      writer->add_scalar("top-1", top1, step);
      std::printf("epoch %d: top-1 %.4f, top-5 %.4f\n", epoch + 1, top1, top5);
    }
    if (top1 > best) {
      best = top1;
      best_epoch = epoch;
      best_weights = lockstep::state_dict(*ema.module());
      for (auto& [name, tensor] : best_weights) tensor = tensor.clone();
    } else if (epoch - best_epoch == 3) {
      break;  // three epochs without a better one
    }
  }
  lockstep::load_state_dict(*net, best_weights);
  if (!writer) return 0;
  lockstep::write_safetensors("image_classifier.safetensors", best_weights);
  std::printf("the best weights are those of epoch %d\n", best_epoch + 1);
}
