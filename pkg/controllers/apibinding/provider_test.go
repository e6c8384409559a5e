package apibinding

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/apis"
)

// TestProvider holds that a binding is to the export that it was permitted for, also
// when another logical cluster has the path.
func TestProvider(t *testing.T) {
	resolve := func(logicalcluster.Path) (logicalcluster.Name, bool) { return "successor", true }
	binding := &apisv1alpha2.APIBinding{}
	binding.Spec.Reference.Export = &apisv1alpha2.ExportBindingReference{Path: "root:provider", Name: "e"}
	binding.Labels = map[string]string{apis.ExportLabel: apis.ExportLabelValue("permitted", "e")}
	require.Empty(t, providerOf("consumer", binding, resolve))
	binding.Labels[apis.ExportLabel] = apis.ExportLabelValue("successor", "e")
	require.Equal(t, logicalcluster.Name("successor"), providerOf("consumer", binding, resolve))

	binding.Labels[apis.ExportLabel] = apis.ExportLabelValue("permitted", "e")
	binding.Status.APIExportClusterName = "permitted"
	require.Equal(t, logicalcluster.Name("permitted"), providerOf("consumer", binding, resolve), "once known it stays")
	binding.Status.APIExportClusterName, binding.Spec.Reference.Export.Path = "", ""
	require.Equal(t, logicalcluster.Name("consumer"), providerOf("consumer", binding, resolve))
}
