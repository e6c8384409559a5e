package shard

import (
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/storage/usage"
)

// mountStore implements mount.Store.
type mountStore struct {
	*usage.Counter
	*customresource.Server
}
