package features

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/component-base/featuregate"

	"github.com/shardplane/shardplane/test/reference"
)

func TestGates(t *testing.T) {
	for feature, on := range map[featuregate.Feature]bool{
		AllShards: true, CachedResources: true, CacheRelays: false, HomeWorkspaces: true, WorkspaceAuthentication: true, WorkspaceMounts: true,
	} {
		require.Equal(t, on, Gates{}.Enabled(feature), feature)
		require.Equal(t, on, Gates{"Other": "true"}.Enabled(feature), feature)
		require.True(t, Gates{string(feature): "true"}.Enabled(feature), feature)
		require.False(t, Gates{string(feature): "false"}.Enabled(feature), feature)
		require.Contains(t, Known(), string(feature)+"=true|false")
	}
	require.Len(t, gates, 6)
	others, err := Gates{"CacheRelays": "true", "WatchList": "false"}.Others()
	require.NoError(t, err)
	require.Equal(t, map[string]bool{"WatchList": false}, others)
	_, err = Gates{"CacheRelays": "yes"}.Others()
	require.EqualError(t, err, "--feature-gates: CacheRelays=yes: the value must be true or false")
}

func TestReferenceFeatureGates(t *testing.T) {
	table := reference.Table{Header: []string{"gate", "stage", "since", "default", "servers", "if disabled"}}
	for name, gate := range gates {
		table.Rows = append(table.Rows, []string{
			reference.Code(string(name)), strings.ToLower(string(gate.PreRelease)), gate.Version.String(), strconv.FormatBool(gate.Default), gate.servers, gate.disabled,
		})
	}
	reference.Compare(t, "feature-gates.md", `# Feature gates

This page is generated from the code.

`+"`--feature-gates=<name>=<true|false>,…`"+` enables or disables features of a server. Set a gate to
the same value on all servers in its row.

- Alpha features are disabled by default. Any release can change or remove them.
- Beta features are enabled by default. A release that changes one describes the migration.
- Stable features have no gate.

`+table.Sort().String()+`
Shards and cache servers also accept the gates of Kubernetes. `+"`ShardedListAndWatch` and `WatchList`"+`
are enabled. `+"`DetectCacheInconsistency`"+`, which reads all stored objects every five minutes, is
disabled.
`)
}
