package workspace

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestIsStart: a logical cluster that holds what it started with holds nothing of anybody.
func TestIsStart(t *testing.T) {
	page := func(names ...string) *metav1.PartialObjectMetadataList {
		list := &metav1.PartialObjectMetadataList{}
		for _, name := range names {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		return list
	}
	namespaces, secrets := kinds.Namespaces.GroupResource(), kinds.Secrets.GroupResource()
	require.True(t, isStart(namespaces, page("default", "kube-system")))
	require.True(t, isStart(kinds.ConfigMaps.GroupResource(), page("kube-root-ca.crt", "kube-root-ca.crt")))
	require.True(t, isStart(secrets, page()))
	require.False(t, isStart(namespaces, page("default", "own")))
	require.False(t, isStart(secrets, page("default")))
	more := page("default", "kube-system")
	more.Continue = "more"
	require.False(t, isStart(namespaces, more))
}
