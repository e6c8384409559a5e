package replicas

import (
	"fmt"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

type guarded interface {
	Guard() client.Guard
	Unreachable() (since time.Time, why error)
}

// Lacks returns the shards of which an informer has not reached a checkpoint, and since when. It is nil for informers
// that were not made by a Cache.
func Lacks(informer guarded, shards []string) map[string]time.Time {
	if r, ok := informer.Guard().(*reader); ok {
		return r.coverage.lacks(shards)
	}
	return nil
}

// readFrom describes the cache server of an informer of replicas for errors. The reason of an outage is logged only,
// because the error may be returned to a tenant.
func readFrom(informer guarded) string {
	r, ok := informer.Guard().(*reader)
	if !ok {
		return ""
	}
	outage := ""
	if since, why := informer.Unreachable(); why != nil {
		outage = ", unreachable since " + since.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf(" (read from cache %q%s)", r.cache.name, outage)
}
