package shard

import (
	"fmt"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/logs"
)

// TestTellRequiredGroups: who upgrades is told of values that mean something else now.
func TestTellRequiredGroups(t *testing.T) {
	for groups, told := range map[string]bool{"": false, "one": false, "one,two": true, "one;two": true} {
		logger, logged := logs.New(t)
		(&local{log: logger}).tellRequiredGroups(&corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			"kcp.io/cluster": "somewhere", "authorization.kcp.io/required-groups": groups,
		}}})
		says := logged.String()
		if told {
			require.Contains(t, says, `cluster="somewhere"`)
			require.Contains(t, says, fmt.Sprintf("groups=%q", groups))
		} else {
			require.Empty(t, says, groups)
		}
	}
}
