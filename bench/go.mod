module github.com/qsidecar/qsidecar/bench

go 1.26.0

require github.com/qsidecar/qsidecar v0.0.0

require (
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // indirect
	github.com/vmihailenco/msgpack/v5 v5.4.1 // indirect
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
)

replace github.com/qsidecar/qsidecar => ../
