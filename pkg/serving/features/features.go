// Package features contains the feature gates of Shardplane. The flag --feature-gates sets them
// together with the feature gates of Kubernetes. Unlike the latter, they belong to a server and not
// to the process.
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

type gate struct {
	featuregate.FeatureSpec
	servers string
	// disabled describes the behavior if the gate is disabled.
	disabled string
}

var (
	v01 = version.MustParse("0.1")

	alpha = featuregate.FeatureSpec{Version: v01, Default: false, PreRelease: featuregate.Alpha}
	beta  = featuregate.FeatureSpec{Version: v01, Default: true, PreRelease: featuregate.Beta}

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

// Enabled reports whether a feature of Shardplane is enabled. It ignores invalid values, see Others.
func (g Gates) Enabled(feature featuregate.Feature) bool {
	if on, err := strconv.ParseBool(g[string(feature)]); err == nil {
		return on
	}
	return gates[feature].Default
}

// Others returns the values of gates that are not Shardplane's, or an error if any value is invalid.
func (g Gates) Others() (map[string]bool, error) {
	others := map[string]bool{}
	for name, value := range g {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("--feature-gates: %s=%s: the value must be true or false", name, value)
		}
		if _, own := gates[featuregate.Feature(name)]; !own {
			others[name] = on
		}
	}
	return others, nil
}

// Known returns the gates of Shardplane for the help, as name=default (stage).
func Known() string {
	known := make([]string, 0, len(gates))
	for name, gate := range gates {
		known = append(known, gate.HelpString(name, false))
	}
	slices.Sort(known)
	return strings.Join(known, ", ")
}
