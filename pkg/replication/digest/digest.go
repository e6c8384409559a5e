// Package digest summarizes replicas, so that a shard and a cache server can compare them without reading them: if the
// roots are equal, the content is equal. Otherwise buckets and then keys are compared.
//
//	replica ──canonical content──► hash ──+──► one of 256 buckets ──► root
//	                                key ──┘
//
// Sums do not depend on the order of writes. They detect errors and losses, but no attacks: a client that could forge
// content with the same hash can write the compared objects anyway.
package digest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// Buckets is the number of buckets.
const Buckets = 256

// Hash returns the hash of a replica by its key and its content, regardless of the order of fields.
func Hash(key string, content map[string]any) (uint64, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return 0, fmt.Errorf("hashing %s: %w", key, err)
	}
	return HashOf(key, text), nil
}

// HashOf is Hash of content in its canonical encoding, or of invalid content.
func HashOf(key string, content []byte) uint64 {
	d := xxhash.New()
	_, _ = d.WriteString(key) // it never fails
	_, _ = d.Write([]byte{0})
	_, _ = d.Write(content)
	return d.Sum64()
}

// BucketOf returns the bucket of a key.
func BucketOf(key string) int { return int(xxhash.Sum64String(key) % Buckets) }

// Sums are the sums of the hashes in each bucket.
type Sums [Buckets]uint64

// Number is a hash or a sum of hashes in hexadecimal.
type Number uint64

// String implements fmt.Stringer.
func (n Number) String() string { return strconv.FormatUint(uint64(n), 16) }

// MarshalText implements encoding.TextMarshaler.
func (n Number) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *Number) UnmarshalText(text []byte) error {
	value, err := strconv.ParseUint(string(text), 16, 64)
	if err != nil {
		return fmt.Errorf("invalid digest %.20q: must be a hexadecimal number of 64 bits", text)
	}
	*n = Number(value)
	return nil
}

// Root summarizes a table.
type Root struct {
	// Count is the number of keys.
	Count int `json:"count"`
	// Digest is the digest of all buckets.
	Digest Number `json:"digest"`
}

// Table contains the hashes of replicas, each with a note of the caller. Except for the keys, it uses 16 bytes and the
// note per replica. It is safe for concurrent use. The zero value is an empty table.
type Table[N any] struct {
	mu sync.Mutex
	// buckets are ordered by key.
	buckets [Buckets][]entry[N]
	sums    Sums
	count   int
}

type entry[N any] struct {
	note N
	key  string
	hash uint64
}

// find returns the position of a key, under the lock.
func (t *Table[N]) find(key string) (bucket, at int, found bool) {
	bucket = BucketOf(key)
	at, found = slices.BinarySearchFunc(t.buckets[bucket], key, func(e entry[N], key string) int { return strings.Compare(e.key, key) })
	return bucket, at, found
}

// Set sets the hash and the note of a key.
func (t *Table[N]) Set(key string, hash uint64, note N) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, at, found := t.find(key)
	if found {
		e := &t.buckets[b][at]
		t.sums[b] += hash - e.hash
		e.hash, e.note = hash, note
		return
	}
	if have := t.buckets[b]; len(have) == cap(have) { // append would double the capacity
		t.buckets[b] = append(make([]entry[N], 0, len(have)+len(have)/8+4), have...)
	}
	t.buckets[b] = slices.Insert(t.buckets[b], at, entry[N]{note, key, hash})
	t.sums[b] += hash
	t.count++
}

// Get returns the hash and the note of a key.
func (t *Table[N]) Get(key string) (hash uint64, note N, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, at, found := t.find(key)
	if !found {
		return 0, note, false
	}
	e := t.buckets[b][at]
	return e.hash, e.note, true
}

// Remove removes a key.
func (t *Table[N]) Remove(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, at, found := t.find(key)
	if !found {
		return
	}
	t.sums[b] -= t.buckets[b][at].hash
	t.buckets[b] = slices.Delete(t.buckets[b], at, at+1)
	t.count--
	if have := t.buckets[b]; len(have) < cap(have)/2 {
		t.buckets[b] = append(make([]entry[N], 0, len(have)+len(have)/8), have...)
	}
}

// Len returns the number of keys.
func (t *Table[N]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

// Root returns the root.
func (t *Table[N]) Root() Root {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Root{Count: t.count, Digest: t.sums.Digest()}
}

// Digest returns the digest of all buckets.
func (s *Sums) Digest() Number {
	var all [8 * Buckets]byte
	for i, sum := range s {
		binary.BigEndian.PutUint64(all[8*i:], sum)
	}
	return Number(xxhash.Sum64(all[:]))
}

// Sums returns the sums of all buckets.
func (t *Table[N]) Sums() Sums {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sums
}

// Keys returns the hashes in one bucket.
func (t *Table[N]) Keys(bucket int) map[string]Number {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := make(map[string]Number, len(t.buckets[bucket]))
	for _, e := range t.buckets[bucket] {
		found[e.key] = Number(e.hash)
	}
	return found
}

// AllKeys returns the keys.
func (t *Table[N]) AllKeys() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := make([]string, 0, t.count)
	for _, entries := range t.buckets {
		for _, e := range entries {
			keys = append(keys, e.key)
		}
	}
	return keys
}
