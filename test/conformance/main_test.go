package conformance

import (
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/shardplane/shardplane/test/harness"
)

func TestMain(m *testing.M) {
	if os.Getenv("CONFORMANCE_LOGS") == "" {
		klog.SetLogger(logr.Discard())
	}
	log.SetLogger(logr.Discard())
	if dir := os.Getenv(etcdEnv); dir != "" {
		if err := serveEtcd(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(harness.Main(m))
}
