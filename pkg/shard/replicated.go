package shard

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/replication"
)

// replicatedKinds are what is replicated, but for what cached resources select, which has limits of its own.
func replicatedKinds() []schema.GroupResource {
	lines := replication.Defaults()
	all := make([]schema.GroupResource, 0, len(lines))
	for i := range lines {
		all = append(all, lines[i].GroupResource())
	}
	return all
}
