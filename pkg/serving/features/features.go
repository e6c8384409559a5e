// Package features contains the feature gates of Shardplane. The flag --feature-gates sets them
// together with those of Kubernetes. Unlike these, they belong to a server and not to the process.
package features

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
)

// Feature gates. docs/reference/feature-gates.md is generated from them.
const (
	// AllShards enables requests to /clusters/* of all shards in the front-proxy.
	AllShards featuregate.Feature = "AllShards"
	// CachedResources enables the replication of objects for consumers on other shards.
	CachedResources featuregate.Feature = "CachedResources"
	// CacheRelays enables cache servers to relay replicas between regions.
	CacheRelays featuregate.Feature = "CacheRelays"
	// HomeWorkspaces enables a home workspace for each user.
	HomeWorkspaces featuregate.Feature = "HomeWorkspaces"
	// WorkspaceAuthentication enables token issuers of workspaces.
	WorkspaceAuthentication featuregate.Feature = "WorkspaceAuthentication"
	// WorkspaceMounts enables workspaces that are served by other servers.
	WorkspaceMounts featuregate.Feature = "WorkspaceMounts"
)

// gate is a feature gate.
type gate struct {
	specs   featuregate.VersionedSpecs
	servers string
	// disabled describes the behavior if the gate is disabled.
	disabled string
}

var (
	v01 = version.MustParse("0.1")

	alpha = featuregate.VersionedSpecs{{Version: v01, Default: false, PreRelease: featuregate.Alpha}}
	beta  = featuregate.VersionedSpecs{{Version: v01, Default: true, PreRelease: featuregate.Beta}}

	gates = map[featuregate.Feature]gate{
		AllShards:       {beta, "front-proxy", "the front-proxy rejects requests to `/clusters/*` with 403, also from administrators"},
		CachedResources: {beta, "shard", "new CachedResources are rejected with 403; existing ones remain"},
		CacheRelays:     {alpha, "cache-server", "a cache server with `--relay-config` does not start"},
		HomeWorkspaces:  {beta, "shard (root)", "there are no home workspaces; existing ones remain as ordinary workspaces"},
		WorkspaceAuthentication: {
			beta, "front-proxy, shard", "tokens of issuers that a workspace configures are rejected with 401",
		},
		WorkspaceMounts: {beta, "front-proxy", "requests for a workspace that is a mount return 503"},
	}
)

// Gates are the values of --feature-gates by name.
type Gates map[string]string

// Gate returns the feature gate of a server. The values must be valid, see Split.
func (g Gates) Gate() (featuregate.FeatureGate, error) {
	gate := newGate()
	own, _, err := g.Split()
	if err != nil {
		return nil, err
	}
	return gate, gate.SetFromMap(own)
}

// Enabled reports whether a feature of Shardplane is enabled. It ignores invalid values. It is
// expensive, and intended for startup.
func (g Gates) Enabled(feature featuregate.Feature) bool {
	gate, err := g.Gate()
	return err == nil && gate.Enabled(feature)
}

// Split returns the values of Shardplane's gates, and of all others.
func (g Gates) Split() (own, others map[string]bool, err error) {
	own, others = map[string]bool{}, map[string]bool{}
	for name, value := range g {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return nil, nil, fmt.Errorf("--feature-gates: %s=%s: the value must be true or false", name, value)
		}
		if _, ok := gates[featuregate.Feature(name)]; ok {
			own[name] = on
		} else {
			others[name] = on
		}
	}
	return own, others, nil
}

// Known returns the gates of Shardplane for the help, as name=default (stage).
func Known() string {
	known := newGate().KnownFeatures()
	known = slices.DeleteFunc(known, func(line string) bool {
		return strings.HasPrefix(line, "All") && !strings.HasPrefix(line, string(AllShards))
	})
	return strings.Join(known, ", ")
}

func newGate() featuregate.MutableVersionedFeatureGate {
	all := featuregate.NewVersionedFeatureGate(v01)
	for name, gate := range gates {
		if err := all.AddVersioned(map[featuregate.Feature]featuregate.VersionedSpecs{name: gate.specs}); err != nil {
			panic(err) // an error in the table
		}
	}
	return all
}
