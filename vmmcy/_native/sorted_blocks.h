// Words in order, each with a number: the neighbours of a word, and insertion between them.
//
// One sorted array would move half of itself for each insertion, and a balanced tree misses the
// cache and the branch predictor at each of its levels. Here the words lie in blocks of a few
// cache lines, found through the sorted array of their first words: two binary searches without
// branches, and a move within one block. Throws std::bad_alloc alone.
#ifndef VMMCY_SORTED_BLOCKS_H
#define VMMCY_SORTED_BLOCKS_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace vmmcy {

constexpr int64_t NOT_KNOWN = -1;

class SortedBlocks {
  public:
    // Where a word belongs, and the numbers on either side of it: NOT_KNOWN at the ends.
    struct Place {
        size_t rank;   // of the block
        size_t index;  // within the block
        int64_t below; // of the greatest word that is not above
        int64_t above; // of the least word that is above
    };

    Place find(uint64_t word) const {
        if (order_.empty())
            return {0, 0, NOT_KNOWN, NOT_KNOWN};
        const size_t after = count_up_to(firsts_.data(), firsts_.size(), word);
        if (after == 0)
            return {0, 0, NOT_KNOWN, block_at(0).numbers[0]};
        const Block &block = block_at(after - 1);
        const size_t index = count_up_to(block.words, block.size, word);
        int64_t above = NOT_KNOWN;
        if (index < block.size)
            above = block.numbers[index];
        else if (after < order_.size())
            above = block_at(after).numbers[0];
        return {after - 1, index, block.numbers[index - 1], above};
    }

    // Inserts at a place that `find` gave for this word, with no insertion since.
    void insert(Place place, uint64_t word, uint32_t number) {
        if (order_.empty())
            add_block(0);
        else if (block_at(place.rank).size == BLOCK_SIZE)
            place = split(place);
        Block &block = blocks_[order_[place.rank]];
        std::copy_backward(block.words + place.index, block.words + block.size,
                           block.words + block.size + 1);
        std::copy_backward(block.numbers + place.index, block.numbers + block.size,
                           block.numbers + block.size + 1);
        block.words[place.index] = word;
        block.numbers[place.index] = number;
        block.size++;
        firsts_[place.rank] = block.words[0];
    }

  private:
    static constexpr size_t BLOCK_SIZE = 64;

    struct Block {
        size_t size;
        uint64_t words[BLOCK_SIZE];
        uint32_t numbers[BLOCK_SIZE];
    };

    const Block &block_at(size_t rank) const {
        return blocks_[order_[rank]];
    }

    // How many of the sorted words are not above `word`. The product keeps branches out.
    static size_t count_up_to(const uint64_t *words, size_t size, uint64_t word) {
        const uint64_t *start = words;
        while (size > 1) {
            const size_t half = size / 2;
            start += (start[half - 1] <= word) * half;
            size -= half;
        }
        return static_cast<size_t>(start - words) + (size == 1 && *start <= word);
    }

    void add_block(size_t rank) {
        order_.insert(order_.begin() + static_cast<ptrdiff_t>(rank),
                      static_cast<uint32_t>(blocks_.size()));
        firsts_.insert(firsts_.begin() + static_cast<ptrdiff_t>(rank), 0);
        blocks_.emplace_back();
    }

    // Moves the upper half of a full block into a new one behind it; follows the place.
    Place split(Place place) {
        constexpr size_t HALF = BLOCK_SIZE / 2;
        add_block(place.rank + 1);
        Block &lower = blocks_[order_[place.rank]];
        Block &upper = blocks_[order_[place.rank + 1]];
        std::copy(lower.words + HALF, lower.words + BLOCK_SIZE, upper.words);
        std::copy(lower.numbers + HALF, lower.numbers + BLOCK_SIZE, upper.numbers);
        lower.size = HALF;
        upper.size = BLOCK_SIZE - HALF;
        firsts_[place.rank + 1] = upper.words[0];
        if (place.index > HALF) {
            place.rank++;
            place.index -= HALF;
        }
        return place;
    }

    std::vector<Block> blocks_;    // in the order made
    std::vector<uint32_t> order_;  // places in `blocks_`, in the order of their words
    std::vector<uint64_t> firsts_; // the first word of each, in that order
};

} // namespace vmmcy

#endif
