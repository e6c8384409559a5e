package reference_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/test/reference"
)

// TestReferenceMetrics compares docs/reference/metrics.md with the declarations of metrics.
func TestReferenceMetrics(t *testing.T) {
	servers := reference.Table{Header: []string{"metric", "type", "labels", "description"}}
	library := servers
	for _, m := range reference.Metrics(t, reference.Load(t)) {
		row := []string{reference.Code(m.Name), m.Type, reference.Code(m.Labels...), m.Help}
		if m.Library {
			library.Rows = append(library.Rows, row)
		} else {
			servers.Rows = append(servers.Rows, row)
		}
	}
	require.Greater(t, len(servers.Rows), 40)
	require.Greater(t, len(library.Rows), 20)
	reference.Compare(t, "metrics.md", `# Metrics

This page is generated from the code. Servers also export the metrics of the Kubernetes libraries
and of the Go runtime. [Monitor an installation](../tasks/monitor.md) describes the access to
metrics.

## Servers

The stability level of these metrics is `+instruments.Stability+`: a release can change or remove them.

`+servers.Sort().String()+`
## Client library

Programs that use the packages below `+"`pkg/client`"+` export these metrics if they register them.

`+library.Sort().String())
}
