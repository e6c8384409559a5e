// Package digest sums up what replicas there are, so that a shard and a cache server can compare
// theirs without reading them: equal roots, equal content. Where they differ, buckets and then keys say
// what does.
//
//	replica ──canonical content──► hash ──+──► one of 256 buckets ──► root
//	                                key ──┘
//
// Sums do not depend on the order of writes. They find mistakes and losses, not forgeries: who could
// forge content that has the same hash can write what replicas are compared with.
package digest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// Buckets is the number of buckets.
const Buckets = 256

// Hash returns the hash of a replica by its key and its content, in which the order of fields
// does not matter.
func Hash(key string, content map[string]any) (uint64, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return 0, fmt.Errorf("cannot hash %s: %w", key, err)
	}
	return HashOf(key, text), nil
}

// HashOf is Hash of content in its canonical encoding, or of what is none, and equal to nothing else.
func HashOf(key string, content []byte) uint64 {
	d := xxhash.New()
	_, _ = d.WriteString(key) // it never fails
	_, _ = d.Write([]byte{0})
	_, _ = d.Write(content)
	return d.Sum64()
}

// BucketOf returns the bucket of a key.
func BucketOf(key string) int { return int(xxhash.Sum64String(key) % Buckets) }

// Sums are those of the hashes in each bucket.
type Sums [Buckets]uint64

// Root sums up a table.
type Root struct {
	// Count is the number of keys.
	Count int `json:"count"`
	// Digest is that of all buckets.
	Digest Number `json:"digest"`
}

// Table has the hashes of some replicas. It is safe for concurrent use.
type Table struct {
	mu     sync.Mutex
	hashes map[string]uint64
	sums   Sums
}

// NewTable returns a table of nothing.
func NewTable() *Table { return &Table{hashes: map[string]uint64{}} }

// Set sets the hash of a key.
func (t *Table) Set(key string, hash uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sums[BucketOf(key)] += hash - t.hashes[key]
	t.hashes[key] = hash
}

// Remove removes a key.
func (t *Table) Remove(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sums[BucketOf(key)] -= t.hashes[key]
	delete(t.hashes, key)
}

// Root returns the root.
func (t *Table) Root() Root {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all [8 * Buckets]byte
	for i, sum := range t.sums {
		binary.BigEndian.PutUint64(all[8*i:], sum)
	}
	return Root{Count: len(t.hashes), Digest: Number(xxhash.Sum64(all[:]))}
}

// Sums returns the sums of all buckets.
func (t *Table) Sums() Sums {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sums
}

// Keys returns the hashes in one bucket.
func (t *Table) Keys(bucket int) map[string]Number {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := map[string]Number{}
	for key, hash := range t.hashes {
		if BucketOf(key) == bucket {
			found[key] = Number(hash)
		}
	}
	return found
}
