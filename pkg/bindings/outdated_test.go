package bindings

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestOutdated: the rules of the newest copy are served, no matter whether the copy was read before or after the event of
// another server's change.
func TestOutdated(t *testing.T) {
	observed := "5"
	s := &schemas{newest: func(types.UID) string { return observed }, byUID: map[types.UID]*pinned{}}
	copied := func(version, rules string) *metav1.PartialObjectMetadata {
		c := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "u", ResourceVersion: version}}
		if rules != "" {
			c.Annotations = map[string]string{conversionAnnotation: rules}
		}
		return c
	}
	require.Nil(t, s.outdated("u", copied("5", "")), "schemas that were not read cannot be outdated")
	five := &pinned{version: "5"}
	s.add("u", five)
	require.Nil(t, s.outdated("u", copied("6", "")), "changes of other fields must be ignored")
	require.Same(t, five, s.cached("u"))
	require.Nil(t, s.outdated("u", copied("4", "former")), "older events must be ignored")
	require.Same(t, five, s.outdated("u", copied("7", "rules")))
	require.Nil(t, s.cached("u"))

	observed = "7"
	s.add("u", five)
	require.Nil(t, s.cached("u"), "schemas older than the observed change must not be cached")
	seven := &pinned{version: "7", rules: "rules"}
	s.add("u", seven)
	require.Same(t, seven, s.cached("u"))
	require.Nil(t, s.outdated("u", copied("7", "rules")))
	eight := &pinned{version: "8", rules: "others"} // read before the index observes it
	s.add("u", eight)
	require.Same(t, eight, s.cached("u"))
	require.Nil(t, s.outdated("u", copied("8", "others")))
}
