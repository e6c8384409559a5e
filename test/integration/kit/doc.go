// Package kit contains the helpers of the integration tests: a running cluster with clients of its servers (Env), an
// administrator's client of one workspace (WorkspaceClient), users (People), and raw requests (Request).
package kit
