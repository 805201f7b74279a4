// SPDX-License-Identifier: BSD-3-Clause
// The full text of what readers and writers of tensor files and checkpoints say about damaged and
// foreign files, and about tensors that do not fit.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/messages/golden.h"
#include "tests/support/captured_warnings.h"
#include "tests/support/temporary_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include "lockstep/checkpoint/checkpoint_folder.h"
#include "lockstep/checkpoint/optimizer/optimizer_state.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/comm/init_process_group.h"

namespace lockstep::testing {
namespace {

using namespace std::string_literals;
using Tensors = std::vector<NamedTensor>;

// A safetensors file of this header and so many bytes of data.
std::string safetensors_bytes(const std::string& header, std::size_t data = 0) {
  std::string bytes;
  for (std::size_t i = 0; i < 8; ++i) {
    bytes += static_cast<char>(static_cast<unsigned char>(header.size() >> (8 * i)));
  }
  return bytes + header + std::string(data, '\0');
}

// The entry "a" of a header.
std::string entry_a(const std::string& type, const std::string& shape, const std::string& offsets) {
  return R"("a":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}";
}

std::function<void()> opening(const std::string& bytes) {
  return [bytes] { SafetensorsFile(std::as_bytes(std::span(bytes)), "net"); };
}

TEST(CheckpointMessages, OtherFormats) {
  // Enough bytes to be no file that is too short.
  const auto open = [](const std::string& begin) { return opening(begin + std::string(16, '\0')); };
  expect_messages(
      "net: ",
      {{opening("abc"),
        "it has 3 bytes, too few for a safetensors file; copy or download it again"},
       {opening(std::string(16, '\0')),
        "it begins with zeros, as an incomplete copy does; copy or download it again"},
       {open("PK\x03\x04"),
        "it is a zip archive, as torch.save writes; read it with read_torch_file"},
       {open("\x80\x02}q"),
        "it is a pickle that is not in a zip archive; files from before PyTorch 1.6 are not read: "
        "load it in Python, and save it again"},
       {open("GGUF"), "it is a GGUF file (llama.cpp); convert it to safetensors"},
       {open("\x89HDF\r\n\x1a\n"),
        "it is an HDF5 file, as Keras writes; convert it to safetensors in Python"},
       {open("\x93NUMPY"),
        "it is an array of NumPy (numpy.save); save it in Python with safetensors.numpy.save_file"},
       {open("\x08\x07\x12"), "it is an ONNX model; convert it to safetensors in Python"},
       {open("\x1f\x8b\x08"), "it is compressed (gzip, xz, zstd, bzip2 or 7z); unpack it"},
       {open("version https://git-lfs.github.com/spec/v1\n"),
        "it is a pointer of Git LFS instead of the file; get the file with `git lfs pull`"},
       {open("<!DOCTYPE html>"),
        "it is a web page, as a failed download leaves it; download the file itself"},
       {open("{\"tokens\": [1, 2]}"), "it is a text of JSON; name the file that has the tensors"},
       {open("nothing known"),
        "its first 8 bytes announce a header of 2334956330817974126 bytes, but the file has 29 "
        "bytes, and a header at most 100000000: it is damaged, incomplete or no safetensors "
        "file"}});
}

TEST(CheckpointMessages, DamagedSafetensors) {
  const auto open = [](const std::string& entries, std::size_t data) {
    return opening(safetensors_bytes("{" + entries + "}", data));
  };
  const std::string four = entry_a("F32", "[1]", "[0,4]");
  expect_messages(
      "net: ",
      {{open(four, 8), "4 bytes follow the last entry, which ends at 4"},
       {open(four + "," + four, 4), "the name \"a\" is there twice"},
       {open(entry_a("F32", "[1]", "[4,8]"), 8),
        "entry \"a\": its data begins at 4, but the one before ends at 0"},
       {open(entry_a("F32", "[2]", "[0,8]"), 4),
        "entry \"a\": its data_offsets are [0, 8], but the data has 4 bytes"},
       {open(entry_a("F32", "[2]", "[0,4]"), 4),
        "entry \"a\": its data_offsets [0, 4] are 4 bytes, but the shape [2] of F32 takes 8"},
       {open(entry_a("F4", "[99]", "[0,1]"), 1),
        "entry \"a\": its data_offsets [0, 1] are 1 bytes, too few for the shape [99]"},
       {open(entry_a("F32", "[4611686018427387904,4]", "[0,4]"), 4),
        "entry \"a\": its shape [4611686018427387904, 4] overflows"},
       {open(entry_a("F32", "[-1]", "[0,4]"), 4), "entry \"a\": its shape has -1, not a size"},
       {open(entry_a("F32", "[1]", "[0]"), 4), "entry \"a\": its data_offsets are not two numbers"},
       {open(R"("a":{"shape":[1],"data_offsets":[0,4]})", 4), "entry \"a\": it has no dtype"},
       {open(R"("a":{"dtype":"F32","strides":[1]})", 4),
        "entry \"a\": it has the unknown field \"strides\""},
       {open(R"("a":7)", 4), "entry \"a\": it is 7, not an object"},
       {open(R"("__metadata__":{"step":3})", 0),
        "__metadata__ has 3 at the key \"step\", not a string"},
       {opening(safetensors_bytes("[1]")), "its header begins with \"[\", not with \"{\""}});
}

TEST(CheckpointMessages, EntriesThatCannotBeRead) {
  const TemporaryFolder folder;
  const std::string bytes = safetensors_bytes("{" + entry_a("F4", "[2]", "[0,1]") + "}", 1);
  folder.write("net.safetensors", bytes);
  const auto path = folder.path() / "net.safetensors";
  expect_messages(
      "FOLDER/net.safetensors: ",
      {{[&] { read_safetensors(path); },
        "1 of 1 entries cannot be read: \"a\" of type \"F4\" (Lockstep does not know it); read the "
        "others one by one with SafetensorsFile, and the bytes of these with its read_bytes"},
       {[&] { SafetensorsFile(path).read(0); },
        "entry \"a\" has elements of type \"F4\" (Lockstep does not know it); convert the file, or "
        "take its bytes with read_bytes"},
       {[&] { SafetensorsFile(path).read(5); }, "there is no entry 5; it has 1"}});
}

TEST(CheckpointMessages, ShardedFiles) {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& index, const Tensors& tensors = {}) {
    return [&folder, index, tensors] {
      const auto shard = folder.path() / "one.safetensors";
      std::filesystem::remove(shard);
      if (!tensors.empty()) write_safetensors(shard, tensors);
      folder.write("net.index.json", index);
      read_safetensors(folder.path() / "net.index.json");
    };
  };
  const auto tensor = torch::ones({2});
  expect_messages(
      "FOLDER/net.index.json: ",
      {{read(R"({"metadata": {}})"),
        "it is a text of JSON without a weight_map, so it is no index of sharded files; name the "
        "file that has the tensors"},
       {read(R"({"weight_map": [1]})"), "its weight_map is an array, not an object"},
       {read(R"({"weight_map": {"a": "../one"}})"),
        "entry \"a\": its file \"../one\" is not a name in the index's folder"},
       {read(R"({"weight_map": {"a": "one.safetensors"}})"),
        "of the 1 files that it names, 1 is missing: \"one.safetensors\"; put it into its folder"},
       {read(R"({"weight_map": {"a": "one.safetensors"}})", {{"b", tensor}}),
        "\"one.safetensors\" has entry \"b\", which the index does not name; recreate the index, "
        "or read each file by itself"},
       {read(R"({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}})",
             {{"a", tensor}}),
        "entry \"b\" is not in \"one.safetensors\", where the index expects it; copy or download "
        "the files again"}});
}

TEST(CheckpointMessages, TensorsThatCannotBeSaved) {
  const TemporaryFolder folder;
  const auto write = [&](const Tensors& tensors) {
    return
        [path = folder.path() / "net.safetensors", tensors] { write_safetensors(path, tensors); };
  };
  const auto one = torch::ones({2});
  expect_messages(
      "",
      {{write({{"a", torch::empty({2}, torch::kComplexHalf)}}),
        "the tensor \"a\" (CPUComplexHalfType) cannot be saved: files have no such type; save "
        "tensor.view(torch::kByte), or convert it with tensor.to()"},
       {write({{"a", torch::zeros({2}, torch::kComplexDouble)}}),
        "the tensor \"a\" is of type complex128, which safetensors lacks; save "
        "torch::view_as_real(tensor), or convert it with tensor.to(type)"},
       {write({{"a", one.to_sparse()}}),
        "the tensor \"a\" (SparseCPUFloatType) cannot be saved: it is sparse or of another layout; "
        "save tensor.to_dense()"},
       {write({{"a", torch::ones({2}, torch::kMeta)}}),
        "the tensor \"a\" (MetaFloatType) cannot be saved: it is on the device meta, where it has "
        "no elements"},
       {write({{"a", at::Tensor()}}), "the tensor \"a\" is undefined and cannot be saved"},
       {write({{"a", one}, {"a", one}}), "two tensors have the name \"a\""},
       {write({{"__metadata__", one}}),
        "a tensor in a safetensors file cannot have the name \"__metadata__\""},
       {write({{"\xff", one}}), "\"\\xff\" is not UTF-8, which a safetensors file needs"}});
}

TEST(CheckpointMessages, PathsThatCannotBeUsed) {
  const TemporaryFolder folder;
  const auto write = [](const std::filesystem::path& path) {
    return [path] { write_safetensors(path, Tensors{{"a", torch::ones({2})}}); };
  };
  expect_messages(
      "", {{write("/no/such/folder/net"),
            "cannot write \"/no/such/folder/net\": No such file or directory; choose a file in an "
            "existing, writable folder"},
           {write(folder.path() / ""),
            "cannot write \"FOLDER/\": this names no file; choose a file in an existing, writable "
            "folder"},
           {write(folder.path()),
            "cannot write \"FOLDER\": this is not a file; choose a file in an existing, writable "
            "folder"},
           {[&] { read_safetensors(folder.path()); },
            "FOLDER: this is a folder; give a file of tensors"},
           {[&] {
              folder.write("net.pt", "");
              read_torch_file(folder.path());
            },
            "FOLDER: this is a folder; give a file of tensors in it, such as FOLDER/net.pt"}});
}

TEST(CheckpointMessages, FilesOfTorchSave) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "net";
  const auto read = [](const std::string& bytes) {
    return [bytes] { read_torch_file(std::as_bytes(std::span(bytes)), "net"); };
  };
  expect_messages(
      "", {{read(""), "net: it is empty; copy or download it again"},
           {read("not an archive"),
            "net: it is not a zip archive, as torch.save writes: it is damaged or incomplete"},
           {[&] {
              write_safetensors(path, Tensors{{"a", torch::ones({2})}});
              read_torch_file(path);
            },
            "FOLDER/net: it is a safetensors file; read it with read_safetensors"},
           {[&] {
              torch::save(torch::ones({2}), path.string());
              read_torch_file(path);
            },
            "FOLDER/net: it is a TorchScript archive, which torch::save of C++ and torch.jit.save "
            "write; load it with torch::load or torch.jit.load, and save its state dict"}});
}

TEST(CheckpointMessages, PartsOfASavedValue) {
  using Dict = TorchValue::Dict;
  const TemporaryFolder folder;
  const TorchValue state = dict_of(Tensors{{"a", torch::ones({2})}});
  const auto text = [](const char* key) { return TorchValue{std::string(key)}; };
  const TorchValue checkpoint{Dict{{text("model"), state}, {text("epoch"), {std::int64_t{3}}}}};
  const TorchValue with_extra{Dict{{text("a"), {torch::ones({2})}}, {text("extra"), {}}}};
  const TorchValue repeated{Dict{{text("a.b"), {torch::ones({2})}},
                                 {text("a"), {Dict{{text("b"), {torch::ones({2})}}}}}}};
  const auto write = [&](const TorchValue& value) {
    return [path = folder.path() / "net.pt", value] { write_torch_file(path, value); };
  };
  expect_messages(
      "",
      {{[&] { state_dict_of(state, "model"); },
        "there is no part \"model\", since the saved value is itself a dict of names and "
        "tensors; leave out the part"},
       {[&] { state_dict_of(checkpoint); },
        "the saved value is not a dict of names and tensors; these parts are: \"model\""},
       {[&] { state_dict_of(checkpoint, "epoch"); },
        "the part \"epoch\" is not a dict of names and tensors; these parts are: \"model\""},
       {[&] { state_dict_of(with_extra); },
        "the saved value is not a dict of names and tensors: its entry \"extra\" is None; take "
        "the tensors alone with all_tensors(value)"},
       {[&] { all_tensors(repeated); }, "two tensors have the name \"a.b\""},
       {write({Dict{{{true}, {}}}}),
        "the dict \"\" has a key that is neither a string nor an integer"},
       {write({Dict{{text("a"), {}}, {text("a"), {}}}}), "the dict \"\" has the key \"a\" twice"}});
}

// A module or an optimizer that differs.

TEST(CheckpointMessages, TensorsThatDoNotFit) {
  torch::nn::Linear net(2, 2);
  const auto load = [&](const Tensors& tensors) {
    return [&net, tensors] { load_state_dict(*net, tensors); };
  };
  const auto weight = torch::ones({2, 2});
  const auto bias = torch::ones({2});
  const std::string remedy =
      "; build the net that was saved, take the part of the file that has its tensors "
      "(state_dict_of(value, \"model\")), or convert them with tensor.to(type)";
  expect_messages(
      "the tensors do not fit this module (torch::nn::LinearImpl):\n  ",
      {{load({{"weight", weight}, {"bias", bias.to(torch::kDouble)}}),
        "\"bias\" is of type Double, and the module's is Float" + remedy},
       {load({{"weight", weight}, {"bias", bias}, {"scale", bias}}),
        "\"scale\" is unexpected" + remedy},
       {load({{"weight", weight.to_sparse()}, {"bias", bias}}),
        "\"weight\" is sparse, or on the device meta, and cannot be copied" + remedy},
       {load({{"module.weight", weight}, {"module.bias", bias}}),
        "\"weight\" is missing\n"
        "  \"bias\" is missing\n"
        "  \"module.weight\" is unexpected\n"
        "  \"module.bias\" is unexpected\n"
        "the unexpected names are the missing ones with \"module.\" in front, as Python's "
        "DistributedDataParallel (\"module.\"), torch.compile (\"_orig_mod.\") and modules around "
        "the net add it: save the inner module's state_dict() in Python, or cut the first 7 "
        "characters off these names"}});
  expect_messages("", {{load({{"a", bias}, {"a", bias}}), "two tensors have the name \"a\""},
                       {load({{"a", at::Tensor()}}), "the tensor \"a\" is undefined"}});
}

TEST(CheckpointMessages, StatesOfOptimizers) {
  const torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  torch::optim::SGD of_weight(std::vector{net->weight}, 0.1);
  torch::optim::Adam adam(net->parameters(), 0.1);
  torch::optim::LBFGS lbfgs(net->parameters());
  const TorchValue state = optimizer_state_dict(sgd);
  const TorchValue whole{TorchValue::Dict{{{"optimizer"s}, state}}};
  const TorchValue empty{TorchValue::Dict{{{"state"s}, {TorchValue::Dict()}},
                                          {{"param_groups"s}, {TorchValue::List()}}}};
  expect_messages(
      "the state does not fit this optimizer ",
      {{[&] { load_optimizer_state_dict(sgd, {}); },
        "(SGD):\n  it is not an optimizer's state dict, which has a dict \"state\" and a list "
        "\"param_groups\""},
       {[&] { load_optimizer_state_dict(sgd, whole); },
        "(SGD):\n  it is not an optimizer's state dict, which has a dict \"state\" and a list "
        "\"param_groups\"; its part \"optimizer\" is one: give what find() returns for it"},
       {[&] { load_optimizer_state_dict(sgd, empty); },
        "(SGD):\n  it has 0 parameter groups, and the optimizer has 1"},
       {[&] { load_optimizer_state_dict(of_weight, state); },
        "(SGD):\n  group 0: it has 2 parameters, and the optimizer's has 1"},
       {[&] { load_optimizer_state_dict(adam, state); },
        "(Adam):\n"
        "  group 0: \"betas\" is missing\n"
        "  group 0: \"eps\" is missing\n"
        "  group 0: \"amsgrad\" is missing"}});
  expect_messages("", {{[&] { optimizer_state_dict(lbfgs); },
                        "Lockstep does not know Python's names for the state of "
                        "torch::optim::LBFGS, only of SGD, Adam, AdamW, RMSprop and Adagrad; save "
                        "other optimizers with torch::save"}});
}

TEST(CheckpointMessages, AnOptimizerWithATiedWeightTwice) {
  const auto weight = torch::ones({2}).requires_grad_();
  const torch::optim::SGD sgd(std::vector{weight, weight}, 0.1);
  const CapturedWarnings warnings;
  optimizer_state_dict(sgd);
  EXPECT_THAT(warnings.messages(),
              ::testing::ElementsAre(
                  "the optimizer lists a parameter more than once, so that each step() updates it "
                  "more than once. Make the optimizer from lockstep::distinct_parameters(*net), "
                  "which lists tied weights once, as Python's parameters() does"));
}

// Folders of checkpoints.

class CheckpointFolderMessages : public ::testing::Test {
 protected:
  CheckpointContents contents() { return {.module = net_.ptr()}; }
  // Leaves the checkpoint of step 1.
  void save_one() { CheckpointFolder(folder_.path(), group_).save(contents(), {.step = 1}); }

  TemporaryFolder folder_;
  std::shared_ptr<ProcessGroup> group_ = make_self_group();
  torch::nn::Linear net_{2, 2};
};

TEST_F(CheckpointFolderMessages, WrongUse) {
  torch::optim::SGD sgd(net_->parameters(), 0.1);
  torch::optim::LBFGS lbfgs(net_->parameters());
  std::map<std::string, double> scheduler{{"lr", std::numeric_limits<double>::quiet_NaN()}};
  const auto with = [&](const CheckpointFolderOptions& options) {
    return [this, options] { CheckpointFolder(folder_.path(), group_, options); };
  };
  const auto save = [&](const CheckpointContents& saved, std::int64_t step = 1) {
    return [this, saved, step] {
      CheckpointFolder(folder_.path(), group_).save(saved, {.step = step});
    };
  };
  expect_messages(
      "[CheckpointFolder] rank 0 of 1: ",
      {{with({.keep_last = 0}), "keep_last is 0 and keep_best 0; keep at least the last one"},
       {save(contents(), -1), "a checkpoint cannot be of step -1; count from 0"},
       {save({.module = net_.ptr(), .scheduler = &scheduler}),
        "a checkpoint cannot keep \"lr\" of the scheduler, which is nan; give it a finite number, "
        "or leave it out"},
       {[&] {
          CheckpointFolder(folder_.path(), group_)
              .load({.module = net_.ptr(), .optimizer = &lbfgs});
        },
        "a checkpoint cannot keep what rank 0 trains: Lockstep does not know Python's names for "
        "the state of torch::optim::LBFGS, only of SGD, Adam, AdamW, RMSprop and Adagrad; save "
        "other optimizers with torch::save"}});
  folder_.write("file", "");
  sgd.param_groups()[0].options().set_lr(std::numeric_limits<double>::quiet_NaN());
  expect_messages(
      "", {{save({}), "a checkpoint needs a module, and this one is null; set .module"},
           {save({.module = net_.ptr(), .optimizer = &sgd}),
            "a checkpoint cannot keep /0/lr of the optimizer, which is nan; give it a finite "
            "number"},
           {[&] { CheckpointFolder(folder_.path() / "file" / "run", group_); },
            "cannot write checkpoints into FOLDER/file/run: Not a directory; choose another "
            "folder"},
           {[&] {
              const CheckpointFolder other(folder_.path(), group_);
              CheckpointFolder(folder_.path(), group_);
            },
            "another run writes checkpoints into FOLDER; wait until it ends, or choose another "
            "folder"}});
}

TEST_F(CheckpointFolderMessages, AnEarlierRun) {
  save_one();
  const torch::nn::Linear wider(2, 3);
  expect_messages(
      "",
      {{[&] { save_one(); },
        "[CheckpointFolder] rank 0 of 1: FOLDER has checkpoints of an earlier run, the newest of "
        "which is step-000000000001; load it first to resume, or choose another folder"},
       {[&] { CheckpointFolder(folder_.path(), group_).load({.module = wider.ptr()}); },
        "FOLDER/step-000000000001 cannot be loaded: the tensors do not fit this module "
        "(torch::nn::LinearImpl):\n"
        "  \"weight\" has the shape [2, 2], and the module's is [3, 2]\n"
        "  \"bias\" has the shape [2], and the module's is [3]; make the model, optimizer and "
        "tensors that it was saved from, or choose another folder"},
       {[&] {
          folder_.write("step-000000000001/manifest.json", "damaged");
          CheckpointFolder(folder_.path(), group_).load(contents());
        },
        "all 1 checkpoints are damaged; the first: FOLDER/step-000000000001/manifest.json is "
        "damaged: its SHA-256 does not match manifest.json.sha256; restore the folder from a "
        "backup, or choose another one"}});
}

TEST_F(CheckpointFolderMessages, ALinkThatCannotBeMade) {
  std::filesystem::create_directory(folder_.path() / "latest");
  std::vector<std::string> lines;
  CheckpointFolder checkpoints(folder_.path(), group_, {.log = [&](const std::string& line) {
                                 lines.push_back(masked(line));
                               }});
  checkpoints.save(contents(), {.step = 1});
  checkpoints.wait();
  EXPECT_THAT(lines, ::testing::ElementsAre(
                         "a checkpoint is complete, but something after it failed: cannot make "
                         "FOLDER/latest: Is a directory"));
}

}  // namespace
}  // namespace lockstep::testing
