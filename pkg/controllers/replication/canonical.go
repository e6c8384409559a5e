package replication

import (
	"errors"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/controllers/replication/digest"
)

var errNoMetadata = errors.New("it has no metadata")

// HashReplica returns the hash of a replica, by which a shard and a cache server compare what they
// have under a key: equal for a replica that is to be written, and one that is as it should be.
func HashReplica(key string, replica map[string]any) (uint64, error) {
	if _, ok := replica["metadata"].(map[string]any); !ok {
		return 0, errNoMetadata
	}
	return digest.Hash(key, canonical(&unstructured.Unstructured{Object: replica}))
}
