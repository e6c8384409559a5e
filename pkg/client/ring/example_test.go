package ring_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/ring"
)

// A replica joins, works on its ranges, and leaves.
func ExampleRing() {
	clienttest.ForExample(func(t testing.TB) {
		t.Helper()
		server := clienttest.New(t, kinds.Scheme)
		factory, err := client.NewFactory(server.ClientConfig())
		if err != nil {
			fmt.Println(err)
			return
		}
		defer factory.CloseIdleConnections()
		replica, err := ring.New(ring.Config{
			Name: "greeter", ID: "replica", Key: client.ByCluster,
			Leases: factory.Cluster(logicalcluster.NewPath("root")), Namespace: "default",
			RenewInterval: 200 * time.Millisecond, GracePeriod: 100 * time.Millisecond, RebalanceDelay: 10 * time.Millisecond,
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		all := make(chan bool, 1)
		defer replica.OnGain(func(gained client.Ranges) { all <- !gained.Empty() })()
		ctx, leave := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- replica.Run(ctx) }()
		for changed := replica.Changed(); ; changed = replica.Changed() {
			if owned, _ := replica.Ranges(); !owned.Empty() {
				break
			}
			<-changed
		}
		status := replica.Status()
		members := status.Members
		moves := status.Moves
		fmt.Println(len(members), members[0].Share, len(moves))
		page := httptest.NewRecorder() // it is an http.Handler, for /debug/ring
		replica.ServeHTTP(page, httptest.NewRequestWithContext(ctx, http.MethodGet, "/debug/ring", http.NoBody))
		fmt.Println(strings.Contains(page.Body.String(), "100.0 %"))

		fmt.Println("works on all", <-all)
		_, end, ok := replica.Begin(ctx, client.HashOf("2x1k"))
		fmt.Println("works", ok)
		end()
		leave()
		fmt.Println(<-ended)
	})
	// Output:
	// 1 1 0
	// true
	// works on all true
	// works true
	// <nil>
}

// New validates the configuration.
func ExampleNew() {
	_, err := ring.New(ring.Config{Name: "greeter", ID: "replica"})
	fmt.Println(err)
	// Output: invalid configuration of ring "greeter": Leases is required: set the logical cluster with the Leases of all members, e.g. factory.Cluster(path)
}
