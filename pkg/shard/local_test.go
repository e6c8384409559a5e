package shard

import (
	"bytes"
	"log/slog"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// TestTellRequiredGroups: who upgrades is told of values that mean something else now.
func TestTellRequiredGroups(t *testing.T) {
	var says bytes.Buffer
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(&says, nil)))
	t.Cleanup(klog.ClearLogger)
	for groups, told := range map[string]bool{"": false, "one": false, "one,two": true, "one;two": true} {
		says.Reset()
		tellRequiredGroups(&corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			"kcp.io/cluster": "somewhere", "authorization.kcp.io/required-groups": groups,
		}}})
		klog.Flush()
		if told {
			require.Contains(t, says.String(), "cluster=somewhere")
			require.Contains(t, says.String(), "groups="+groups)
		} else {
			require.Empty(t, says.String(), groups)
		}
	}
}
