// SPDX-License-Identifier: BSD-3-Clause
// The stack machine of pickle protocol 2, without the opcodes that can run code.
#include "lockstep/checkpoint/torch_file/pickle_machine.h"

#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"

namespace lockstep {
namespace pickle {
namespace {

// The names of refused opcodes of protocols 0 to 5, for messages.
constexpr std::array<std::pair<unsigned char, std::string_view>, 37> kRefusedOpcodes{{
    {'0', "POP"},
    {'1', "POP_MARK"},
    {'2', "DUP"},
    {'F', "FLOAT"},
    {'I', "INT"},
    {'L', "LONG"},
    {'P', "PERSID"},
    {'S', "STRING"},
    {'T', "BINSTRING"},
    {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE"},
    {'d', "DICT"},
    {'g', "GET"},
    {'i', "INST"},
    {'l', "LIST"},
    {'o', "OBJ"},
    {'p', "PUT"},
    {'B', "BINBYTES"},
    {'C', "SHORT_BINBYTES"},
    {0x81, "NEWOBJ"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {0x8b, "LONG4"},
    {0x8c, "SHORT_BINUNICODE"},
    {0x8d, "BINUNICODE8"},
    {0x8e, "BINBYTES8"},
    {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"},
    {0x92, "NEWOBJ_EX"},
    {0x93, "STACK_GLOBAL"},
    {0x94, "MEMOIZE"},
    {0x95, "FRAME"},
    {0x96, "BYTEARRAY8"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
}};

class Machine {
 public:
  Machine(std::string_view text, const StorageReader& storages, const std::string& file)
      : text_(text), storages_(storages), file_(file) {}

  Item run() {
    for (;;) {
      at_ = next_;
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (at_ == 0 && opcode != 0x80) fail("the pickle does not begin with its protocol");
      if (opcode == '.') break;
      step(opcode);
    }
    if (next_ != text_.size()) {
      fail(fmt::format("{} bytes follow the end of the pickle", text_.size() - next_));
    }
    if (stack_.size() != 1 || !marks_.empty()) {
      fail(fmt::format("the pickle ends with {} values instead of one", stack_.size()));
    }
    return stack_.front();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(fmt::format("{}: {}", file_, what));
  }
  // Adds the position of the opcode.
  [[noreturn]] void refuse(const std::string& what) const {
    fail(fmt::format("at byte {} of its pickle: {}", at_, what));
  }

  std::string_view take(std::size_t size) {
    if (size > text_.size() - next_) refuse("the pickle ends within an opcode");
    next_ += size;
    return text_.substr(next_ - size, size);
  }
  template <class Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string_view line() {
    constexpr std::size_t kMost = 256;
    const auto end = text_.substr(0, std::min(text_.size(), next_ + kMost)).find('\n', next_);
    if (end == std::string_view::npos) refuse("a name does not end");
    const auto result = take(end - next_);
    take(1);
    return result;
  }

  void push(Item item) { stack_.push_back(std::move(item)); }
  Item pop() {
    if (stack_.size() <= floor()) refuse("the pickle takes a value that it did not make");
    Item item = std::move(stack_.back());
    stack_.pop_back();
    return item;
  }
  // Values below the last mark cannot be taken.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<Item> pop_to_mark() {
    if (marks_.empty()) refuse("the pickle has no mark here");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Item> items(std::make_move_iterator(begin), std::make_move_iterator(stack_.end()));
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  template <class Kind>
  Kind& top(const char* what) {
    if (stack_.size() > floor()) {
      if (const auto* found = std::get_if<Kind>(&stack_.back().data)) {
        return const_cast<Kind&>(*found);
      }
    }
    refuse(fmt::format("the pickle needs {} here", what));
  }

  void push_tuple(std::vector<Item> items) {
    tuples_.push_back(std::move(items));
    push({&std::as_const(tuples_.back())});
  }
  void push_tuple_of(std::size_t count) {
    std::vector<Item> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    push_tuple(std::move(items));
  }
  void push_dict(bool ordered) {
    dicts_.push_back({.items = {}, .ordered = ordered});
    push({&dicts_.back()});
  }
  void add_items(std::vector<Item> items) {
    if (items.size() % 2 != 0) refuse("a key has no value");
    Dict& dict = *top<Dict*>("a dict");
    for (std::size_t i = 0; i < items.size(); i += 2) {
      dict.items.emplace_back(std::move(items[i]), std::move(items[i + 1]));
    }
  }
  void append_items(std::vector<Item> items) {
    List& list = *top<List*>("a list");
    for (auto& item : items) list.items.push_back(std::move(item));
  }

  void step(unsigned char opcode) {
    switch (opcode) {
      case 0x80: {
        const int protocol = number<std::uint8_t>();
        if (protocol != 2 || at_ != 0) {
          refuse(fmt::format("protocol {}, but only protocol 2 is read, torch.save's default",
                             protocol));
        }
        return;
      }
      case 'N':
        return push({});
      case 0x88:
        return push({true});
      case 0x89:
        return push({false});
      case 'K':
        return push({std::int64_t{number<std::uint8_t>()}});
      case 'M':
        return push({std::int64_t{number<std::uint16_t>()}});
      case 'J':
        return push({std::int64_t{number<std::int32_t>()}});
      case 0x8a:
        return push({long_number()});
      case 'G':
        return push({std::bit_cast<double>(__builtin_bswap64(number<std::uint64_t>()))});
      case 'X':
        return push({take(number<std::uint32_t>())});
      case '(':
        return marks_.push_back(stack_.size());
      case ')':
        return push_tuple({});
      case 't':
        return push_tuple(pop_to_mark());
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple_of(opcode - 0x84u);
      case ']':
        lists_.emplace_back();
        return push({&lists_.back()});
      case 'a': {
        Item item = pop();
        return append_items({std::move(item)});
      }
      case 'e':
        return append_items(pop_to_mark());
      case '}':
        return push_dict(false);
      case 's': {
        Item value = pop();
        Item key = pop();
        return add_items({std::move(key), std::move(value)});
      }
      case 'u':
        return add_items(pop_to_mark());
      case 'q':
        return remember(number<std::uint8_t>());
      case 'r':
        return remember(number<std::uint32_t>());
      case 'h':
        return recall(number<std::uint8_t>());
      case 'j':
        return recall(number<std::uint32_t>());
      case 'c':
        return global();
      case 'Q':
        return storage();
      case 'R':
        return reduce();
      case 'b':
        return build();
      default:
        refuse_opcode(opcode);
    }
  }

  [[noreturn]] void refuse_opcode(unsigned char opcode) const {
    for (const auto& [code, name] : kRefusedOpcodes) {
      if (code != opcode) continue;
      refuse(
          fmt::format("the opcode {} is never needed for tensors and plain values, and is not "
                      "executed",
                      name));
    }
    refuse(fmt::format("there is no opcode {:#04x}", opcode));
  }

  std::int64_t long_number() {
    const std::string_view bytes = take(number<std::uint8_t>());
    if (bytes.size() > 8) {
      refuse(fmt::format("a whole number of {} bytes, but at most 8 are read", bytes.size()));
    }
    const bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
    std::int64_t value = negative ? -1 : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }

  void remember(std::uint32_t slot) {
    if (stack_.size() <= floor()) refuse("the pickle remembers a value that it did not make");
    memo_.insert_or_assign(slot, stack_.back());
  }
  void recall(std::uint32_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) refuse(fmt::format("the pickle has not remembered value {}", slot));
    push(found->second);
  }

  void global() {
    const Global found{line(), line()};
    if (!is_known(found)) {
      refuse(
          fmt::format("it refers to {}, which is neither a tensor nor a plain value, and is not "
                      "loaded; save tensors, numbers and strings only",
                      in_quotes(fmt::format("{}.{}", found.module, found.name))));
    }
    push({found});
  }

  void storage() {
    const Item id = pop();
    const auto* tuple = std::get_if<const Tuple*>(&id.data);
    const auto text = [&](std::size_t i) {
      const auto* found = std::get_if<std::string_view>(&(**tuple)[i].data);
      return found == nullptr ? std::string_view() : *found;
    };
    if (tuple == nullptr || (*tuple)->size() != 5 || text(0) != "storage") {
      refuse("a persistent id that does not name a storage");
    }
    const auto* kind = std::get_if<Global>(&(**tuple)[1].data);
    const auto* count = std::get_if<std::int64_t>(&(**tuple)[4].data);
    if (kind == nullptr || !is_storage(*kind) || count == nullptr || *count < 0) {
      refuse("a storage without a type or a size");
    }
    // A short opcode makes a storage, which takes many more bytes than the opcode.
    if (pickled_storages_.size() == kMostStoredTensors) {
      fail(fmt::format("it refers to storages more than {} times", kMostStoredTensors));
    }
    if (text(2).size() > kMostNameBytes) {
      refuse(fmt::format("the storage {}, whose name is longer than {} bytes", in_quotes(text(2)),
                         kMostNameBytes));
    }
    pickled_storages_.push_back({.key = text(2),
                                 .type = find_storage_type(kind->name),
                                 .count = static_cast<std::uint64_t>(*count)});
    push({&std::as_const(pickled_storages_.back())});
  }

  void reduce() {
    const Item arguments = pop();
    const Item function = pop();
    const auto* name = std::get_if<Global>(&function.data);
    const auto* tuple = std::get_if<const Tuple*>(&arguments.data);
    if (name == nullptr || tuple == nullptr) refuse("a call of an object that is not a function");
    if (name->name == "OrderedDict") {
      if (!(*tuple)->empty()) refuse("an OrderedDict that is made from something");
      return push_dict(true);
    }
    if (++tensors_ > kMostStoredTensors) {
      fail(fmt::format("it has more than {} tensors", kMostStoredTensors));
    }
    try {
      push({tensor_of_call(*name, **tuple, storages_)});
    } catch (const MalformedCall& error) {
      refuse(error.what());
    } catch (const c10::Error& error) {
      refuse(first_line(error));
    }
  }

  // Ignores the versions of modules, which Python's state dicts carry.
  void build() {
    const Item state = pop();
    const Dict& target = *top<Dict*>("a dict");
    const auto* attributes = std::get_if<Dict*>(&state.data);
    const auto* name = attributes != nullptr && (*attributes)->items.size() == 1
                           ? std::get_if<std::string_view>(&(*attributes)->items[0].first.data)
                           : nullptr;
    const bool only_metadata = name != nullptr && *name == "_metadata";
    if (!target.ordered || !only_metadata) {
      refuse("the opcode BUILD, which sets attributes, on something other than a state dict");
    }
  }

  std::string_view text_;
  const StorageReader& storages_;
  const std::string& file_;
  std::size_t next_ = 0;
  std::size_t at_ = 0;
  std::size_t tensors_ = 0;
  std::vector<Item> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::uint32_t, Item> memo_;  // ordered: slots chosen to collide take no longer
  std::deque<std::vector<Item>> tuples_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<PickledStorage> pickled_storages_;
};

}  // namespace
}  // namespace pickle

TorchValue read_pickle(std::string_view text, const StorageReader& storages,
                       const std::string& file) {
  pickle::Machine machine(text, storages, file);
  const pickle::Item item = machine.run();
  return pickle::tree_of(item, text.size(), file);
}

}  // namespace lockstep
