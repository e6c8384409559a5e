package conformance

import (
	"fmt"
	"net/http"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHangingWebhook: requests that wait for a webhook are answered when their
// time is over, and nothing of them stays: in the long version, by what the
// server itself allows a webhook, which is half a minute.
func TestHangingWebhook(t *testing.T) {
	masters := one.Get(t).Shard(0)
	u := newUser(t, masters, "hanging", "hanging.example.com")
	hook := startConverter(t)
	u.define(twoVersions())
	u.convertBy(hook)
	for i := range 5 {
		u.widget(fmt.Sprintf("w%d", i), `{size: 1}`)
	}
	hook.mode.Store("hangs")
	inParallel(t, 8, func(i int) error {
		path := "/apis/" + u.group + "/v2/widgets?timeout=1s"
		if i%2 == 0 {
			path = "/apis/" + u.group + "/v2/namespaces/default/widgets/w0?timeout=1s"
		}
		if response, body := u.get(path, "application/json"); response.StatusCode != http.StatusGatewayTimeout {
			return fmt.Errorf("%d: %s", response.StatusCode, body)
		}
		return nil
	})
	require.NotZero(t, converting(t), "the test looks for what there is")
	if !testing.Short() {
		response, body := u.get("/apis/"+u.group+"/v2/namespaces/default/widgets/w0", "application/json")
		require.Equal(t, http.StatusInternalServerError, response.StatusCode)
		require.Contains(t, string(body), "conversion webhook")
	} else {
		hook.release()
	}
	u.eventually("nothing waits for the webhook any more", func() bool { return converting(t) == 0 })
}

// converting is how many goroutines wait for conversion webhooks.
func converting(t *testing.T) int {
	t.Helper()
	var all strings.Builder
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&all, 2))
	return strings.Count(all.String(), "conversion.(*webhookConverter).Convert(")
}
