// SPDX-License-Identifier: BSD-3-Clause
// A small GPT that learns to continue text, byte by byte: 0.8 million parameters, four layers. By
// default it reads the licences that every Debian has; it prints the bits that it needs per byte of
// the text (8 would be chance), and a sample of what it has learned.
//
//   lockstep run -n 2 char_transformer [FILE [EPOCHS]]
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numbers>
#include <set>
#include <sstream>
#include <string>

#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

namespace nn = torch::nn;
constexpr std::int64_t kContext = 64, kWidth = 128, kHeads = 4, kLayers = 4, kBytes = 256;

struct BlockImpl : nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    const auto batch = input.size(0), length = input.size(1);
    const auto split = qkv(norm1(input)).view({batch, length, 3, kHeads, kWidth / kHeads});
    const auto heads = split.permute({2, 0, 3, 1, 4});
    auto scores = heads[0].matmul(heads[1].transpose(2, 3)) / std::sqrt(kWidth / kHeads);
    const auto later = torch::ones({length, length}, torch::kBool).triu(1).to(input.device());
    scores = scores.masked_fill(later, -1e4);
    const auto mixed = scores.softmax(-1).matmul(heads[2]).transpose(1, 2).flatten(2);
    const auto attended = input + out(mixed);
    return attended + down(torch::gelu(up(norm2(attended))));
  }
  nn::LayerNorm norm1{register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})))};
  nn::Linear qkv{register_module("qkv", nn::Linear(kWidth, 3 * kWidth))};
  nn::Linear out{register_module("out", nn::Linear(kWidth, kWidth))};
  nn::LayerNorm norm2{register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})))};
  nn::Linear up{register_module("up", nn::Linear(kWidth, 4 * kWidth))};
  nn::Linear down{register_module("down", nn::Linear(4 * kWidth, kWidth))};
};
TORCH_MODULE(Block);

struct GptImpl : nn::Module {
  GptImpl() {
    for (int i = 0; i < kLayers; ++i) blocks->push_back(Block());
  }
  at::Tensor forward(const at::Tensor& bytes) {  // [batch, length] to [batch, length, 256]
    const auto places = torch::arange(bytes.size(1), bytes.options());
    return head(norm(blocks->forward(byte(bytes) + place(places))));
  }
  nn::Embedding byte{register_module("byte", nn::Embedding(kBytes, kWidth))};
  nn::Embedding place{register_module("place", nn::Embedding(kContext, kWidth))};
  nn::Sequential blocks{register_module("blocks", nn::Sequential())};
  nn::LayerNorm norm{register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})))};
  nn::Linear head{register_module("head", nn::Linear(kWidth, kBytes))};
};
TORCH_MODULE(Gpt);

at::Tensor read_text(const std::filesystem::path& path) {
  std::set<std::filesystem::path> files{path};  // sorted: the same text on every rank
  if (std::filesystem::is_directory(path)) {
    files.clear();
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.is_regular_file() && !entry.is_symlink()) files.insert(entry.path());
    }
  }
  std::ostringstream text;
  for (const auto& file : files) text << std::ifstream(file).rdbuf();
  std::string bytes = text.str();
  if (bytes.size() <= kContext) throw lockstep::UsageError("too little text in " + path.string());
  return torch::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, torch::kByte)
      .to(torch::kLong);
}

std::string continued(Gpt net, std::string text, at::Device device, int count) {
  const torch::NoGradGuard no_grad;
  for (int i = 0; i < count; ++i) {
    const std::string end = text.substr(text.size() - std::min<std::size_t>(text.size(), kContext));
    std::vector<std::int64_t> bytes;
    for (const unsigned char byte : end) bytes.push_back(byte);
    const auto scores = net(torch::tensor(bytes, torch::kLong).view({1, -1}).to(device));
    text += static_cast<char>(torch::softmax(scores[0][-1], 0).multinomial(1).item<std::int64_t>());
  }
  return text;
}

int main(int argc, char** argv) {
  torch::manual_seed(0);
  auto group = lockstep::init_process_group();
  auto device = group->device();
  const auto text = read_text(argc > 1 ? argv[1] : "/usr/share/common-licenses");
  const std::int64_t windows = (text.numel() - 1) / kContext;
  const auto inputs = text.narrow(0, 0, windows * kContext).view({windows, kContext});
  const auto targets = text.narrow(0, 1, windows * kContext).view({windows, kContext});
  lockstep::DistributedSampler sampler(static_cast<std::size_t>(windows), group);
  lockstep::MemoryLoader loader(inputs, targets, sampler, {.batch_size = 16, .device = device});

  Gpt net;
  net->to(device);
  lockstep::Trainer trainer(net, group,
                            {.epochs = argc > 2 ? std::stoi(argv[2]) : 8,
                             .max_grad_norm = 1,
                             .log = [](const auto& line) { std::puts(line.c_str()); }});
  trainer.optimize_with<lockstep::optim::AdamW>(torch::optim::AdamWOptions(2e-3));
  const auto epochs = trainer.fit(loader,
                                  [](auto& model, auto& batch) {
                                    return torch::cross_entropy_loss(
                                        model(batch.data).flatten(0, 1), batch.target.flatten());
                                  },
                                  {.sampler = &sampler});
  if (group->rank() != 0) return 0;
  std::printf("%.2f bits per byte\n", epochs.back().loss / std::numbers::ln2);
  std::puts(continued(net, "This License ", device, 300).c_str());
}
