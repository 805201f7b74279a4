// SPDX-License-Identifier: BSD-3-Clause
// A generative adversarial network: two models with an optimizer each, in a loop of the program's
// own, since a lockstep::Trainer has one optimizer. The generator learns to turn noise into samples
// of a normal distribution with the mean 4 and the deviation 0.5.
//
//   gan                      one process
//   lockstep run -n 2 gan    two ranks
#include <cstdint>
#include <cstdio>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

int main() {
  auto group = lockstep::init_process_group();
  auto device = group->device();
  lockstep::seed_everything(0, *group);  // each rank draws noise of its own

  const std::int64_t noise = 8;
  torch::nn::Sequential generator_net{torch::nn::Linear(noise, 32), torch::nn::ReLU(),
                                      torch::nn::Linear(32, 1)};
  torch::nn::Sequential discriminator_net{torch::nn::Linear(1, 32), torch::nn::ReLU(),
                                          torch::nn::Linear(32, 1)};
  generator_net->to(device);
  discriminator_net->to(device);
  lockstep::DistributedDataParallel generator(generator_net, group);
  lockstep::DistributedDataParallel discriminator(discriminator_net, group);
  const auto options = torch::optim::AdamOptions(1e-3).betas({0.5, 0.999});
  lockstep::optim::Adam generator_optimizer(generator_net->parameters(), options);
  lockstep::optim::Adam discriminator_optimizer(discriminator_net->parameters(), options);

  // The real samples, the same on every rank; the sampler deals them.
  auto random = at::make_generator<at::CPUGeneratorImpl>(1);
  auto real = 4 + 0.5 * torch::randn({8'192, 1}, random);
  lockstep::DistributedSampler sampler(real.size(0), group);
  lockstep::MemoryLoader loader(
      real, real, sampler,
      {.batch_size = 128 / static_cast<std::size_t>(group->size()), .device = device});

  const auto loss_of = [](const at::Tensor& verdict, bool is_real) {
    const auto target = is_real ? torch::ones_like(verdict) : torch::zeros_like(verdict);
    return torch::binary_cross_entropy_with_logits(verdict, target);
  };
  for (int epoch = 0; epoch < 10; ++epoch) {
    sampler.set_epoch(epoch);
    double discriminator_loss = 0;
    double samples = 0;
    at::Tensor fake;
    for (auto& batch : loader) {
      fake = generator(torch::randn({batch.data.size(0), noise}, device));

      discriminator_optimizer.zero_grad();
      auto loss =
          loss_of(discriminator(batch.data), true) + loss_of(discriminator(fake.detach()), false);
      loss.backward();
      discriminator_optimizer.step();

      // Through the net itself: the gradients of the discriminator are not needed, nor reduced.
      generator_optimizer.zero_grad();
      loss_of(discriminator->module()->forward(fake), true).backward();
      generator_optimizer.step();

      discriminator_loss += loss.item<double>() * static_cast<double>(batch.data.size(0));
      samples += static_cast<double>(batch.data.size(0));
    }
    const auto means = lockstep::mean_over_ranks(
        torch::tensor({discriminator_loss, fake.sum().item<double>()}, torch::kDouble),
        torch::tensor({samples, static_cast<double>(fake.size(0))}, torch::kDouble), group);
    if (group->rank() == 0) {
      std::printf("epoch %d: loss of the discriminator %.4f, mean of the samples %.2f\n", epoch,
                  means[0].item<double>(), means[1].item<double>());
    }
  }
}
