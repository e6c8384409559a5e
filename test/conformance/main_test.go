package conformance

import (
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
	os.Exit(harness.Main(m))
}
