package listwatch

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// future is a resource version that tests do not reach.
const future = "1000000000"

func number(t *testing.T, resourceVersion string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	require.NoError(t, err)
	return n
}

// testResourceVersions checks the table of resource versions of lists.
func testResourceVersions(t *testing.T, all []endpoint) {
	t.Helper()
	eachEndpoint(t, all, func(t *testing.T, at endpoint) {
		before := at.list(t, "")
		at.create(t, "versioned-"+strconv.Itoa(int(number(t, before.Metadata.ResourceVersion))))
		past := before.Metadata.ResourceVersion
		consistent := at.list(t, "")
		require.Len(t, consistent.Items, len(before.Items)+1, "a consistent list must contain earlier writes")
		require.Greater(t, number(t, consistent.Metadata.ResourceVersion), number(t, past))

		for _, query := range [][]string{
			{"resourceVersion", "0"},
			{"resourceVersion", "0", "resourceVersionMatch", "NotOlderThan"},
		} {
			require.NotEmpty(t, at.list(t, "", query...).Metadata.ResourceVersion)
		}
		for _, query := range [][]string{
			{"resourceVersion", past},
			{"resourceVersion", past, "resourceVersionMatch", "NotOlderThan"},
			{"resourceVersion", past, "resourceVersionMatch", "NotOlderThan", "limit", "3"},
		} {
			require.GreaterOrEqual(t, number(t, at.list(t, "", query...).Metadata.ResourceVersion), number(t, past))
		}
		exactly := at.list(t, "", "resourceVersion", past, "resourceVersionMatch", "Exact")
		require.Equal(t, past, exactly.Metadata.ResourceVersion)
		require.ElementsMatch(t, before.names(), exactly.names())
		limited := at.list(t, "", "resourceVersion", past, "limit", "3")
		require.Equal(t, past, limited.Metadata.ResourceVersion)
		require.Len(t, limited.Items, 3)

		for name, query := range map[string][]string{
			"match without version":     {"resourceVersionMatch", "NotOlderThan"},
			"exact zero":                {"resourceVersion", "0", "resourceVersionMatch", "Exact"},
			"unknown match":             {"resourceVersion", past, "resourceVersionMatch", "Sometimes"},
			"match with continue":       {"resourceVersion", past, "resourceVersionMatch", "Exact", "continue", limited.Metadata.Continue},
			"initial events in a list":  {"sendInitialEvents", "true"},
			"watch: match alone":        {"watch", "true", "resourceVersionMatch", "NotOlderThan"},
			"watch: initial, no match":  {"watch", "true", "sendInitialEvents", "true"},
			"watch: initial with Exact": {"watch", "true", "sendInitialEvents", "true", "resourceVersion", "1", "resourceVersionMatch", "Exact"},
		} {
			t.Run(name, func(t *testing.T) {
				kit.RequireStatus(t, at.config, at.call(query...), http.StatusUnprocessableEntity)
			})
		}
		for _, garbage := range []string{"abc", "-1", "1.5", "0x10", "99999999999999999999999"} {
			for _, query := range [][]string{
				{"resourceVersion", garbage},
				{"resourceVersion", garbage, "limit", "2"},
				{"resourceVersion", garbage, "resourceVersionMatch", "Exact"},
				{"resourceVersion", garbage, "resourceVersionMatch", "NotOlderThan"},
				{"resourceVersion", garbage, "watch", "true"},
				{"resourceVersion", garbage, "watch", "true", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan"},
			} {
				status := kit.RequireStatus(t, at.config, at.call(query...), http.StatusBadRequest)
				require.Equal(t, metav1.StatusReasonBadRequest, status.Reason, "%v", query)
			}
			if at.one {
				status := kit.RequireStatus(t, at.config, kit.Request{Path: at.path + "/listed-0?resourceVersion=" + garbage}, http.StatusBadRequest)
				require.Equal(t, metav1.StatusReasonBadRequest, status.Reason, "of one object")
			}
		}
		if at.one && !at.same {
			status := kit.RequireStatus(t, at.config, at.created(t, `"resourceVersion":"1"`), http.StatusBadRequest)
			require.Contains(t, status.Message, "metadata.resourceVersion must not be set")
		}
		kit.RequireStatus(t, at.config, at.call("continue", limited.Metadata.Continue, "resourceVersion", past), http.StatusBadRequest)
		require.Equal(t, past, at.list(t, "", "continue", limited.Metadata.Continue, "resourceVersion", "0").Metadata.ResourceVersion)
	})
	t.Run("in the future", func(t *testing.T) { testFuture(t, all) })
}

// testFuture checks that lists and watches at a future resource version fail after a timeout. They are sent in parallel.
func testFuture(t *testing.T, all []endpoint) {
	t.Helper()
	type response struct {
		code int
		body []byte
		err  error
	}
	var wg sync.WaitGroup
	initial := []string{"sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true"}
	queries := map[string][]string{
		"list":           {},
		"watch":          {"watch", "true", "timeoutSeconds", "20"},
		"initial events": append([]string{"watch", "true", "timeoutSeconds", "20"}, initial...),
	}
	responses := map[string]*response{}
	for name, query := range queries {
		for _, at := range all {
			a := &response{}
			responses[name+at.name] = a
			wg.Go(func() {
				a.code, a.body, a.err = kit.Send(t.Context(), at.config, at.call(append([]string{"resourceVersion", future}, query...)...))
			})
		}
	}
	wg.Wait()
	for name := range queries {
		t.Run(name, func(t *testing.T) {
			eachEndpoint(t, all, func(t *testing.T, at endpoint) {
				a := responses[name+at.name]
				require.NoError(t, a.err)
				var status metav1.Status
				if name == "list" {
					require.Equal(t, http.StatusGatewayTimeout, a.code, "%s", a.body)
					require.NoError(t, json.Unmarshal(a.body, &status))
				} else {
					require.Equal(t, http.StatusOK, a.code, "%s", a.body)
					var e event
					require.NoError(t, json.Unmarshal(a.body, &e))
					require.Equal(t, "ERROR", e.Type)
					status = e.Object.Status
				}
				requireTooLarge(t, status)
			})
		})
	}
}

func requireTooLarge(t *testing.T, status metav1.Status) {
	t.Helper()
	require.Equal(t, http.StatusGatewayTimeout, int(status.Code))
	require.Equal(t, metav1.StatusReasonTimeout, status.Reason)
	require.NotNil(t, status.Details)
	require.Equal(t, 1, int(status.Details.RetryAfterSeconds))
	require.Len(t, status.Details.Causes, 1)
	require.Equal(t, metav1.CauseTypeResourceVersionTooLarge, status.Details.Causes[0].Type)
}
