package operations

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// The audit policies of the shared cluster. The logs contain what TestAudit expects of each level, and all writes.
const (
	auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:apiserver"]
- level: RequestResponse
  verbs: [create]
  resources: [{group: "", resources: [configmaps]}]
- level: RequestResponse
  namespaces: [recorded]
  resources: [{group: "", resources: [secrets]}]
- level: Request
  verbs: [patch]
  resources: [{group: example.com, resources: ["*"]}]
- level: Metadata
  resources: [{group: "", resources: [configmaps, secrets]}]
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
`
	// proxyAuditPolicy is the policy of the front-proxy.
	proxyAuditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  nonResourceURLs: ["/version"]
- level: RequestResponse
`
	cacheAuditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [get, create, update, patch, delete, deletecollection]
`
)

// everything contains the objects to which the options of the shared cluster refer.
var everything struct {
	// dir contains <component>.log, the audit logs.
	dir  string
	hook *auditHook
	// sni is a certificate for other.example.com, issued by a CA in store.
	store *pki.Store
	sni   *pki.Pair
	// mounts is a server that workspaces mount.
	mounts *httptest.Server
}

func TestMain(m *testing.M) {
	kit.Main(m, func(dir string, o *harness.Options) {
		if err := enableEverything(dir, o); err != nil {
			panic(err)
		}
	})
}

// enableEverything configures audit logs, an audit webhook, encryption, SNI certificates and mounts.
func enableEverything(dir string, o *harness.Options) error {
	all := &everything
	all.dir, all.hook, all.mounts, all.store = dir, newAuditHook(), newMountedServer(), pki.NewStore(dir, time.Now)
	ca, err := all.store.Authority("sni-ca")
	if err != nil {
		return err
	}
	if all.sni, err = all.store.Certificate("other", ca, pki.Spec{CommonName: "first", DNSNames: []string{"other.example.com"}}); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"policy.yaml": auditPolicy, "proxy.yaml": proxyAuditPolicy, "cache.yaml": cacheAuditPolicy,
		"encryption.yaml": kit.EncryptionConfig("[" + kit.EncryptionKey + ", {identity: {}}]"),
		"webhook.yaml":    webhookConfig(all.hook.URL), "mounts.crt": certificateOf(all.mounts),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	log := func(component string) []string { return []string{"--audit-log-path", file(component + ".log")} }
	tls := []string{"--tls-min-version", "VersionTLS13", "--tls-sni-cert-key", all.sni.CertFile + "," + all.sni.KeyFile}
	o.EncryptionConfig = file("encryption.yaml")
	add := func(to string, args ...string) { o.ExtraArgs[to] = append(o.ExtraArgs[to], args...) }
	add("shard", tls...)
	add("shard", "--audit-policy-file", file("policy.yaml"), "--audit-webhook-config-file", file("webhook.yaml"), "--audit-webhook-batch-max-wait", "100ms")
	add("root", log("root")...)
	add("shard-1", log("shard-1")...)
	add("cache-server", append(append(tls, "--audit-policy-file", file("cache.yaml")), log("cache-server")...)...)
	add("front-proxy", append(append(tls, "--audit-policy-file", file("proxy.yaml")), log("front-proxy")...)...)
	add("front-proxy", "--mount-allowed-cidrs=127.0.0.0/8", "--mount-ca-file="+file("mounts.crt"))
	return nil
}

// sharedWithEverything is kit.Shared for tests that need these options.
func sharedWithEverything(t *testing.T) *kit.Env {
	t.Helper()
	e := kit.Shared(t)
	if e.External {
		t.Skip("the running cluster was started without the flags that the test needs; run it without CLUSTER")
	}
	return e
}

// auditLog returns the logged events of a component.
func auditLog(t *testing.T, component string) []auditv1.Event {
	t.Helper()
	file := filepath.Join(everything.dir, component+".log")
	if _, err := os.Stat(file); os.IsNotExist(err) { // no events yet
		return nil
	}
	return readAuditLog(t, file)
}

// sinceNow returns a function for new events only, e.g. without those of an earlier run of the test.
func sinceNow(events func() []auditv1.Event) func() []auditv1.Event {
	before := len(events())
	return func() []auditv1.Event { return events()[before:] }
}

func webhookConfig(url string) string {
	return `apiVersion: v1
kind: Config
clusters: [{name: hook, cluster: {server: "` + url + `"}}]
contexts: [{name: hook, context: {cluster: hook}}]
current-context: hook
`
}

func certificateOf(server *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}
