package definitions

import (
	"context"
	"slices"

	"github.com/shardplane/shardplane/pkg/apis"
)

// InGroups waits until all definitions are known, and returns those in the groups,
// as <logical cluster>|<name>, sorted; fewer only if ctx ends before.
func (o *Index) InGroups(ctx context.Context, groups []string) []string {
	for !o.waitSynced(ctx) {
		if ctx.Err() != nil {
			return nil
		}
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	var found []string
	for name, clusters := range o.byName {
		if !slices.Contains(groups, apis.DefinitionGroup(name)) {
			continue
		}
		for cluster := range clusters {
			found = append(found, cluster.Path().String()+"|"+name)
		}
	}
	slices.Sort(found)
	return found
}
