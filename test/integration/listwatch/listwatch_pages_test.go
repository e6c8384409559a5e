package listwatch

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// testPages checks the rules of chunked lists.
func testPages(t *testing.T, all []endpoint) {
	t.Helper()
	var foreign string
	eachEndpoint(t, all, func(t *testing.T, at endpoint) {
		whole := at.list(t, "")
		first := at.list(t, "", "limit", "3")
		require.Len(t, first.Items, 3)
		if first.Metadata.RemainingItemCount != nil || !at.filtered {
			require.NotNil(t, first.Metadata.RemainingItemCount)
			require.EqualValues(t, len(whole.Items)-3, *first.Metadata.RemainingItemCount)
		}
		require.Nil(t, at.list(t, "", "limit", "3", "labelSelector", "a!=b").Metadata.RemainingItemCount)

		// Objects must not be listed if they are created between two pages.
		at.create(t, "between-"+first.Metadata.ResourceVersion)
		names, page := first.names(), first
		for page.Metadata.Continue != "" {
			page = at.list(t, "", "limit", "3", "continue", page.Metadata.Continue)
			require.Equal(t, first.Metadata.ResourceVersion, page.Metadata.ResourceVersion)
			names = append(names, page.names()...)
		}
		require.Equal(t, whole.names(), names)
		require.Nil(t, page.Metadata.RemainingItemCount)
		require.Empty(t, at.list(t, "", "limit", "3", "resourceVersion", "0").Metadata.Continue, "limit is ignored at 0")

		token := first.Metadata.Continue
		for name, bad := range map[string]string{
			"garbage":  "garbage",
			"cut":      token[:len(token)-1],
			"changed":  "A" + token[1:],
			"extended": token + "x",
			"foreign":  foreign,
		} {
			if bad == "" || (name == "foreign" && at.same) || (name == "changed" && token[0] == 'A') {
				continue
			}
			status := kit.RequireStatus(t, at.config, at.call("limit", "3", "continue", bad), http.StatusBadRequest)
			require.Contains(t, status.Message, "invalid continue token", name)
		}
		foreign = token
	})
}
