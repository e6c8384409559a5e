package push

import (
	"context"
	"fmt"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication/digest"
)

// verify compares the digests of buckets that have not changed meanwhile, and repairs the differences.
func (s *session) verify(ctx context.Context) error {
	before := s.expected.now(s.ledger)
	response, err := s.digests.fetch(ctx, s.name())
	if err != nil {
		return err
	}
	after, theirs := s.expected.now(s.ledger), response.Sums()
	var suspects []client.Key
	for bucket := range digest.Buckets {
		if theirs[bucket] == before.sums[bucket] || !before.still(after, bucket) {
			continue
		}
		some, err := s.suspectsIn(ctx, bucket)
		if err != nil {
			return err
		}
		suspects = append(suspects, some...)
	}
	for _, key := range suspects {
		s.markDirty(key)
	}
	return nil
}

// suspectsIn returns the different keys of a bucket, or none if the bucket has changed meanwhile.
func (s *session) suspectsIn(ctx context.Context, bucket int) ([]client.Key, error) {
	before := s.expected.now(s.ledger)
	response, err := s.digests.fetch(ctx, s.name(), bucket)
	if err != nil || !before.still(s.expected.now(s.ledger), bucket) {
		return nil, err
	}
	return s.differing(bucket, response.Keys)
}

// differing returns the keys of a bucket whose hashes differ from the expected ones.
func (s *session) differing(bucket int, theirs map[string]digest.Number) ([]client.Key, error) {
	different := s.expected.Keys(bucket)
	for text, hash := range theirs {
		if mine, ok := different[text]; ok && mine == hash {
			delete(different, text)
		} else {
			different[text] = hash
		}
	}
	keys := make([]client.Key, 0, len(different))
	for text := range different {
		key, err := client.SplitKey(text)
		if err != nil || key.Shard != "" {
			return nil, fmt.Errorf("the cache server has a replica with the invalid key %.100q", text)
		}
		keys = append(keys, key)
	}
	return keys, nil
}
