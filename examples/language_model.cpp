// SPDX-License-Identifier: BSD-3-Clause
// Trains an LSTM to predict the next token of a file, which is mapped into memory: with one weight
// for its first and its last layer (tied weights), clipped gradients, and a warm-up. Without a
// file, it makes one of the bytes of a licence. python/language_model.py is the same program.
//
//   lockstep run -n 2 language_model [TOKENS [VOCABULARY [EPOCHS]]]
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>

#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

namespace nn = torch::nn;
constexpr std::int64_t kWindow = 64, kWidth = 128;

struct LanguageModelImpl : nn::Module {
  explicit LanguageModelImpl(std::int64_t vocabulary)
      : embedding(register_module("embedding", nn::Embedding(vocabulary, kWidth))),
        lstm(register_module("lstm", nn::LSTM(nn::LSTMOptions(kWidth, kWidth).batch_first(true)))) {
    nn::init::uniform_(embedding->weight, -0.1, 0.1);
  }
  at::Tensor forward(const at::Tensor& tokens) {  // [batch, length] to [batch, length, vocabulary]
    const auto output = std::get<0>(lstm->forward(embedding(tokens)));
    return torch::linear(output, embedding->weight);
  }
  nn::Embedding embedding;
  nn::LSTM lstm;
};
TORCH_MODULE(LanguageModel);

// Each byte of the text becomes a token of 16 bits. A tokenizer's tokens are written in the same
// way; NumPy's array.astype("<u2").tofile(file) writes such a file, too.
void write_tokens(const std::filesystem::path& text, const std::filesystem::path& file) {
  std::ifstream in(text, std::ios::binary);
  std::ofstream out(file, std::ios::binary);
  for (std::istreambuf_iterator<char> byte(in), end; byte != end; ++byte) {
    out.put(*byte).put('\0');  // little-endian
  }
}

int main(int argc, char** argv) {
  const std::string file = argc > 1 ? argv[1] : "licence.tokens";
  const std::int64_t vocabulary = argc > 2 ? std::stoll(argv[2]) : 256;
  const int epochs = argc > 3 ? std::stoi(argv[3]) : 2;
  torch::manual_seed(0);
  auto group = lockstep::init_process_group();
  const auto device = group->device();
  if (argc == 1 && group->rank() == 0) write_tokens("/usr/share/common-licenses/GPL-3", file);
  group->barrier().wait();

  const lockstep::TokenDataset tokens(
      file, {.window = kWindow, .type = lockstep::TokenType::uint16, .vocabulary = vocabulary});
  lockstep::DistributedSampler sampler(tokens, group);
  lockstep::DataLoader loader(
      tokens, sampler,
      {.batch_size = static_cast<std::size_t>(16 / group->size()), .device = device});
  const auto steps = epochs * static_cast<std::int64_t>(loader.batches_per_epoch());
  const std::int64_t warm_up = steps / 10;

  LanguageModel net(vocabulary);
  net->to(device);
  lockstep::DistributedDataParallel model(net, group);
  lockstep::optim::AdamW optimizer(model, torch::optim::AdamWOptions(5e-3));
  lockstep::optim::LRScheduler scheduler(
      optimizer,
      lockstep::optim::SequentialLR{
          .schedulers = {lockstep::optim::LinearLR{.start_factor = 0.1, .total_iters = warm_up},
                         lockstep::optim::CosineAnnealingLR{.T_max = steps - warm_up}},
          .milestones = {warm_up}});

  std::int64_t step = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    double sum = 0, windows = 0;
    for (auto& batch : loader) {
      optimizer.zero_grad();
      auto scores = model(batch.data);
      auto loss = torch::cross_entropy_loss(scores.flatten(0, 1), batch.target.flatten());
      loss.backward();
      const double norm = lockstep::clip_grad_norm_(model, 0.25);
      optimizer.step();
      scheduler.step();
      sum += loss.item<double>() * static_cast<double>(batch.data.size(0));
      windows += static_cast<double>(batch.data.size(0));
      ++step;
      if (group->rank() != 0) continue;
      std::printf("step %lld: loss %.6f, norm of the gradients %.3f\n",
                  static_cast<long long>(step), loss.item<double>(), norm);
    }
    const auto mean =
        lockstep::mean_over_ranks(torch::tensor({sum}), torch::tensor({windows}), group);
    if (group->rank() != 0) continue;
    std::printf("epoch %d: perplexity %.2f\n", epoch + 1, std::exp(mean.item<double>()));
  }
  if (group->rank() == 0) {
    lockstep::write_safetensors("language_model.safetensors", lockstep::state_dict(*net));
  }
}
