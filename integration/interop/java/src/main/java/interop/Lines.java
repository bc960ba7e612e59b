package interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.util.Map;

/** The lines of JSON that a program prints. */
final class Lines {
  private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();

  private Lines() {}

  /** Prints a line of JSON. Several threads may print. */
  static synchronized void print(Map<String, ?> line) {
    System.out.println(GSON.toJson(line));
    System.out.flush();
  }
}
