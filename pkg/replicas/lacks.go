package replicas

import (
	"fmt"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

// guarded is an informer of any type.
type guarded interface {
	Guard() client.Guard
	Unreachable() (since time.Time, why error)
}

// Lacks returns which of the shards an informer has not known completely by marks, and since when that
// is missed. It is nil for informers that no Cache has made.
func Lacks(informer guarded, shards []string) map[string]time.Time {
	if r, ok := informer.Guard().(*reader); ok {
		return r.coverage.lacks(shards)
	}
	return nil
}

// readFrom returns from which cache server an informer reads replicas, and since when that is unavailable; nothing
// for other informers. The reason is logged only, because the error may be returned to a tenant.
func readFrom(informer guarded) string {
	r, ok := informer.Guard().(*reader)
	if !ok {
		return ""
	}
	away := ""
	if since, why := informer.Unreachable(); why != nil {
		away = ", away since " + since.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf(" (read from cache %q%s)", r.cache.name, away)
}
