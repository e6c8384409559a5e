package documents_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
)

func ExampleOf() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/clusters/root:team/version" {
			_, _ = w.Write([]byte(`{"gitVersion":"v1.37.2+shardplane"}`))
		}
	}))
	defer server.Close()
	factory, err := client.NewFactory(&rest.Config{Host: server.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer factory.CloseIdleConnections()
	team, err := documents.Of(factory.Cluster(logicalcluster.NewPath("root:team")))
	if err != nil {
		fmt.Println(err)
		return
	}
	version, err := team.ServerVersion()
	fmt.Println(version, err)
	// Output: v1.37.2+shardplane <nil>
}
